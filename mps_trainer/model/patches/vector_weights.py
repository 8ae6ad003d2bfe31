"""Adds a second dimension to the one-dimensional linear weights of D-FINE and DEIMv2 during a run on mps.

mps has no gradients of such a layer (pytorch issue 189565): these two models could not be trained there at all.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# Both reshape the layer's output, which removes the extra dimension of size 1.
_CLASSES = {
    "transformers.models.d_fine.modeling_d_fine": "DFineIntegral",
    "transformers.models.deimv2.modeling_deimv2": "Deimv2Integral",
}


@contextlib.contextmanager
def vector_weights_as_matrices(model: nn.Module, applies: bool) -> Iterator[None]:
    """Inside, passes the one-dimensional weight as a matrix of one row, if `applies`."""
    classes = [getattr(sys.modules.get(name), kind, None) for name, kind in _CLASSES.items()]
    with contextlib.ExitStack() as hooks:
        for module in model.modules() if applies else ():
            if type(module) in classes:
                hooks.callback(module.register_forward_pre_hook(_weight_as_matrix).remove)
        yield


def _weight_as_matrix(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg.unsqueeze(0) if isinstance(arg, torch.Tensor) and arg.dim() == 1 else arg for arg in args)
