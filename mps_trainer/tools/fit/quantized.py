"""Replaces linear layers by stand-ins for bitsandbytes' layers with 4-bit or 8-bit weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...model.introspection import base_model

# Bytes for each number: half a byte and, for 64 of them, a scale in float32; or a byte, and a scale for each row.
BYTES = {4: 0.5 + 4 / 64, 8: 1.0}
DOUBLE_QUANTIZED = 0.5 + 1 / 64 + 4 / (64 * 256)  # the scales in a byte, and one in float32 for 256 of them


class QuantizedLinear(nn.Linear):
    """A linear layer with a quantized weight, which each product dequantizes to `compute_dtype`.

    Args:
        like: the layer that it stands for. Only its shape and bias are used.
        size: bytes for each number of the weight.
    """

    def __init__(self, like: nn.Linear, size: float, compute_dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = like.in_features, like.out_features, like.bias
        packed = torch.empty(round(like.weight.numel() * size), dtype=torch.uint8, device=like.weight.device)
        self.weight = nn.Parameter(packed, requires_grad=False)
        if self.bias is not None:
            self.bias.requires_grad_(False)
        self.compute_dtype = compute_dtype
        self.train(like.training)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            shape = self.out_features, self.in_features
            result = _Product.apply(hidden.to(self.compute_dtype), self.weight, shape, bias)
        return result.to(hidden.dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, packed: torch.Tensor, shape: tuple[int, int], bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.shape = shape
        return nn.functional.linear(hidden, packed.new_empty(shape, dtype=hidden.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad @ grad.new_empty(ctx.shape), None, None, None


def quantize(model: nn.Module, size: float, compute_dtype: torch.dtype, skipped: tuple[str, ...] = ()) -> None:
    """Replaces the frozen linear layers of a model, except its head and those with a name that ends in `skipped`."""
    head = getattr(base_model(model), "get_output_embeddings", lambda: None)()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            is_frozen = type(child) is nn.Linear and not child.weight.requires_grad
            if is_frozen and child is not head and not name.endswith(skipped or ("lm_head",)):
                setattr(module, name, QuantizedLinear(child, size, compute_dtype))  # type: ignore[arg-type]


def size_and_format(config: Any) -> tuple[float, torch.dtype, tuple[str, ...]] | None:
    """Returns the arguments of `quantize` for a `BitsAndBytesConfig` or its dictionary; None for another method."""
    settings = config if isinstance(config, dict) else config.to_dict()
    skipped = tuple(settings.get("llm_int8_skip_modules") or ())
    if settings.get("load_in_8bit"):
        return BYTES[8], torch.float16, skipped
    if not settings.get("load_in_4bit"):
        return None
    dtype = settings.get("bnb_4bit_compute_dtype") or "float32"
    size = DOUBLE_QUANTIZED if settings.get("bnb_4bit_use_double_quant") else BYTES[4]
    return size, getattr(torch, dtype) if isinstance(dtype, str) else dtype, skipped
