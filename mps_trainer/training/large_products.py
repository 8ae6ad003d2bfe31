"""A warning of layers whose gradients M1 and M2 compute wrong, by name, before training or at the first large batch.

Other machines pay nothing. There, the model gets one hook, which looks at shapes on the host, and is gone once it has
warned.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..devices.large_products import Layer, concerns, warning_of_tokens, warning_of_width

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def told_of_large_products(model: nn.Module, device: torch.device, chip: str | None) -> Iterator[None]:
    """Inside, a model that is trained on an affected Mac is watched; outside, nothing is left in it."""
    if device.type != "mps" or not concerns(torch.__version__, chip):
        yield
        return
    layers = linear_layers(model)
    _warn_once(warning_of_width(layers, torch.__version__))

    def look(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():  # an evaluation
            return
        warning = warning_of_tokens(layers, tokens_in((*args, *kwargs.values())), torch.__version__)
        if warning is not None:
            hook.remove()
            _warn_once(warning)

    hook = model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def linear_layers(model: nn.Module) -> dict[str, Layer]:
    """The linear layers of `model` by name."""
    return {
        name: Layer(module.in_features, module.out_features, module.weight.requires_grad)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def tokens_in(inputs: tuple[Any, ...]) -> int:
    """The tokens of a batch: rows times length of its largest input."""
    return max((_positions(value) for value in inputs if isinstance(value, torch.Tensor)), default=0)


def _positions(tensor: torch.Tensor) -> int:
    """Words come as whole numbers in two dimensions; of others the last dimension is what a token is made of."""
    is_features = tensor.is_floating_point() and tensor.dim() < 3
    return tensor.shape[: 1 if is_features else 2].numel()


@functools.cache
def _warn_once(text: str | None) -> None:
    if text is not None:
        logger.warning(text)
