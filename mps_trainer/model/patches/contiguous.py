"""Makes a model's parameters contiguous in memory before it is trained on mps.

torch's kernels for mps have lost updates to others: they computed into a copy, and before macOS 15 nothing brought it
back (pytorch issue 118115 for the step of an optimizer, 165257 for random numbers). A parameter that was transposed,
or a model in channels_last, then does not learn, without a word.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...devices.known_faults import faults_to_warn_of

logger = logging.getLogger(__name__)


def make_contiguous(model: nn.Module, optimizer: Any = None) -> None:
    """Makes the parameters of `model` contiguous, and their state in `optimizer` if there is one already.

    Each stays the object that it is, so that tied ones stay tied and an optimizer keeps them. Where several lie in the
    same memory, they still do if they lie there alike; otherwise they are left as they are, with a warning.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.layout == torch.strided]
    # weights that torchao has quantized are made of other tensors, and have no memory of their own
    named = [(name, p) for name, p in named if not is_traceable_wrapper_subclass(p)]
    strided = [(name, parameter) for name, parameter in named if not parameter.is_contiguous()]
    places: dict[int, set[Any]] = {}  # by memory
    for _, parameter in named:
        place = parameter.storage_offset(), tuple(parameter.shape), parameter.stride(), parameter.dtype
        places.setdefault(parameter.untyped_storage().data_ptr(), set()).add(place)
    changed: list[str] = []
    kept: list[str] = []
    made: dict[int, torch.Tensor] = {}
    for name, parameter in strided:
        memory = parameter.untyped_storage().data_ptr()
        if len(places[memory]) > 1:
            kept.append(name)
            continue
        if memory not in made:
            made[memory] = parameter.data.contiguous()
        parameter.data = made[memory]
        changed.append(name)
        for value in _state(optimizer, parameter):
            value.data = value.data.contiguous()
    if kept:
        logger.warning(
            "%s: not contiguous, and in the memory of other parameters, so left as they are. Some releases of torch "
            "lose updates of such parameters on mps: tie them by giving both modules the same parameter instead.",
            ", ".join(kept),
        )
    if changed:
        logger.info("Made contiguous for mps: %s.", ", ".join(changed))


def _state(optimizer: Any, parameter: nn.Parameter) -> list[torch.Tensor]:
    """Returns the tensors that an optimizer keeps for each element of `parameter`."""
    states = getattr(optimizer, "state", None) or {}
    values = states[parameter].values() if parameter in states else ()
    return [value for value in values if isinstance(value, torch.Tensor) and value.shape == parameter.shape]


@functools.cache
def warn_of_known_faults(macos_version: str | None, chip: str | None) -> None:
    """Warns, once in a process, of what this torch gets wrong on this Mac."""
    for fault in faults_to_warn_of(torch.__version__, macos_version, chip):
        logger.warning("torch %s on macOS %s has a known fault: %s.", torch.__version__, macos_version, fault)
