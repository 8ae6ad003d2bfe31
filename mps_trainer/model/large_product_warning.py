"""Warns about layers with wrong gradients on M1 and M2, before training or at the first large batch.

Other machines pay nothing. There, the linear layers that learn get a hook each, which looks at shapes on the host. All
of them are removed once one has warned.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..devices.facts import parse_version
from ..devices.known_faults import M1_AND_M2, is_chip
from ..devices.large_products import INNER, MENDED_IN_2D, OUTER

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def told_of_large_products(
    model: nn.Module, device: torch.device, chip: str | None, split: nn.Module | None = None
) -> Iterator[None]:
    """Watches a model inside, if it trains on an affected Mac, and removes its hooks at the end.

    Args:
        split: a layer whose products are computed in parts, which needs no warning.
    """
    is_mended = parse_version(torch.__version__) >= MENDED_IN_2D
    if device.type != "mps" or is_mended or not is_chip(chip, M1_AND_M2):
        yield
        return
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, Conv1D)) and layer is not split and min(_sizes(layer)) >= OUTER
    }
    wide = {name: _sizes(layer) for name, layer in layers.items() if max(_sizes(layer)) >= INNER}
    if wide:
        inputs, outputs = next(iter(wide.values()))
        if outputs >= inputs:
            _warn_once(f"Gradients that come through {_first(wide)} ({outputs:,} outputs)")
        else:
            _warn_once(f"Outputs of {_first(wide)} ({inputs:,} inputs)")
    learning = {name: layer for name, layer in layers.items() if layer.weight.requires_grad}

    def look(layer: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or not args:  # an evaluation
            return
        tokens = args[0].shape[:-1].numel()
        if tokens >= INNER:
            hooks.close()
            _warn_once(
                f"Gradients of {_first(learning)}, from a batch of {tokens:,} tokens,",
                " Until then keep batch size times length below 32,767, with gradient_accumulation_steps for the "
                "rest.",
            )

    with contextlib.ExitStack() as hooks:
        for layer in learning.values():
            hooks.callback(layer.register_forward_pre_hook(look).remove)
        yield


def _sizes(layer: nn.Linear | Conv1D) -> tuple[int, int]:
    """Returns the inputs and outputs of a layer. GPT-2 has `Conv1D`, and quantized weights have other shapes."""
    return (layer.nx, layer.nf) if isinstance(layer, Conv1D) else (layer.in_features, layer.out_features)


def _first(layers: Mapping[str, Any]) -> str:
    first, more = next(iter(layers)), len(layers) - 1
    return first + (f" and {more} more layer{'s' if more > 1 else ''}" if more else "")


@functools.cache
def _warn_once(what: str, more: str = "") -> None:
    logger.warning(
        f"{what} may be wrong: torch {torch.__version__} computes matrix products that sum {INNER:,} numbers or more "
        "wrong on M1 and M2 (pytorch issue 177116). Install torch 2.14 or later: "
        f"python -m pip install -U 'torch>=2.14'.{more}"
    )
