"""Dropout on the CPU with four decisions from each random number.

torch draws a number for each element, one after the other on one thread: 6 to 16 % of the step of a small BERT.
Here 64 random bits decide about four elements, 16 bits for each. The probability is therefore a multiple of 1/65,536,
and what is kept is divided by the probability that this leaves, so that the expectation is exact.

Gain, by `python -m benchmarks.patches`: MiniLM's step in float32 takes 0.95 of the time (0.88 to 1.04 in 5 rounds), on
a processor whose products take four fifths of it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import torch
from torch.nn import functional

from ...utils.attributes import attributes_replaced

_VALUES = 2**16  # 16 bits have so many


def draw(shape: torch.Size, p: float, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Returns a random mask for the CPU, 1 for what is kept and 0 for what is dropped, and what to scale the kept by.

    Args:
        p: the probability of 0, between 0 and 1; rounded to a multiple of 1/65,536.
        dtype: of the mask, a floating-point one.

    Draws from torch's default generator, in the same order whatever the number of threads.
    """
    size, dropped = shape.numel(), min(round(p * _VALUES), _VALUES - 1)  # so many values mean that one is dropped
    draws = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    pieces = draws.view(torch.int16)[:size].view(shape)
    mask = torch.ge(pieces, dropped - _VALUES // 2, out=torch.empty(shape, dtype=dtype))
    return mask, _VALUES / (_VALUES - dropped)


def dropout(input: torch.Tensor, p: float) -> torch.Tensor:
    """Returns `input`, of any shape, with each element dropped with probability `p` and the others scaled."""
    mask, scale = draw(input.shape, p, input.dtype)
    if input.dtype.itemsize >= 4:
        return input * mask.mul_(scale)
    return (input * mask) * scale  # a scale of 16 bits would be off by 0.2 %


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    scale: float | None = None,
) -> torch.Tensor:
    """Returns what `torch.nn.functional.scaled_dot_product_attention` does; its arguments are that function's."""
    scores = (query * (1 / math.sqrt(query.size(-1)) if scale is None else scale)) @ key.transpose(-2, -1)
    softmax: Any = torch.softmax
    seen = None
    if mask is not None and mask.dtype is torch.bool:
        seen = mask.any(-1, keepdim=True)
        lowest = torch.finfo(scores.dtype).min / 2  # added to a score, the minimum itself is infinite in float16
        mask = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, lowest)
    elif mask is not None:
        softmax = torch._safe_softmax  # gives 0 for rows of -inf, as torch's attention does
    if mask is not None:
        scores = scores.add_(mask)
    weights = softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    kept, factor = draw(weights.shape, dropout_p, weights.dtype)
    result = (weights * kept) @ (value * factor)
    return result if seen is None or seen.all() else result * seen  # queries that see nothing get 0


def fast_dropout(is_on: bool) -> contextlib.AbstractContextManager[None]:
    """Inside, dropout and attention with dropout on the CPU decide about four elements by each random number."""
    plain, plain_attention = functional.dropout, functional.scaled_dot_product_attention

    @functools.wraps(plain)
    def fast(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or inplace or not _takes(p, input):
            return plain(input, p, training, inplace)
        return dropout(input, p)

    @functools.wraps(plain_attention)
    def fast_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> torch.Tensor:
        is_known = attn_mask is None or (
            type(attn_mask) is torch.Tensor and attn_mask.dtype in (torch.bool, query.dtype) and not is_causal
        )
        if not is_known or more.get("enable_gqa") or not _takes(dropout_p, query, key, value):
            return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, **more)
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril() if is_causal else attn_mask
        return attention(query, key, value, mask, dropout_p, more.get("scale"))

    own = [(functional, "dropout", fast), (functional, "scaled_dot_product_attention", fast_attention)]
    return attributes_replaced(own if is_on else ())


def _takes(p: float, *tensors: torch.Tensor) -> bool:
    return 0 < p < 1 and all(
        type(each) in (torch.Tensor, torch.nn.Parameter)
        and each.device.type == "cpu"
        and each.is_floating_point()
        and not each.is_nested
        for each in tensors
    )
