"""Warns about layers with wrong gradients on M1 and M2, before training or at the first large batch.

Other machines pay nothing. There, the linear layers that learn get a hook each, which looks at shapes on the host. All
of them are removed once one has warned.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..devices.facts import parse_version
from ..devices.known_faults import M1_AND_M2, is_chip
from ..devices.large_products import INNER, MENDED_IN_2D, Layer, warning_of_tokens, warning_of_width

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
    layers = {name: layer for name, layer in linear_layers(model).items() if model.get_submodule(name) is not split}
    _warn_once(warning_of_width(layers, torch.__version__))

    def look(layer: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or not args:  # an evaluation
            return
        tokens = args[0].shape[:-1].numel()
        if tokens >= INNER:
            hooks.close()
            _warn_once(warning_of_tokens(layers, tokens, torch.__version__))

    with contextlib.ExitStack() as hooks:
        for name, layer in layers.items():
            if layer.has_large_gradient(INNER):
                hooks.callback(model.get_submodule(name).register_forward_pre_hook(look).remove)
        yield


def linear_layers(model: nn.Module) -> dict[str, Layer]:
    """Returns the linear layers of `model` by name, those of GPT-2 (`Conv1D`) among them."""
    layers = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            layers[name] = Layer(module.in_features, module.out_features, module.weight.requires_grad)
        elif isinstance(module, Conv1D):
            inputs, outputs = module.weight.shape
            layers[name] = Layer(inputs, outputs, module.weight.requires_grad)
    return layers


@functools.cache
def _warn_once(text: str | None) -> None:
    if text is not None:
        logger.warning(text)
