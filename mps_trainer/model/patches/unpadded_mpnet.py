"""Computes the attention of MPNet in the padded form, when its layers compute one row of tokens without padding.

MPNet computes attention itself, with a bias for the distance of two tokens in the padded batch, so transformers'
interfaces do not reach it. The bias is the same for all texts and is made for one of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from ...utils.text_layout import TextLayout
from ..attention_masks import ChunkedMask


def mpnet_changes(stack: Any, layouts: list[TextLayout]) -> list[tuple[Any, str, Any]]:
    """Returns the attributes to replace in MPNet's stack of layers: objects, names and values.

    Args:
        layouts: the layouts of the calls that are under way, the latest one last.
    """
    bias = _padded_bias(stack.compute_position_bias, layouts)
    changes: list[tuple[Any, str, Any]] = [(stack, "compute_position_bias", MethodType(bias, stack))]
    for layer in stack.layer:
        attention = layer.attention.attn
        changes.append((attention, "forward", MethodType(_attention(attention.forward), attention)))
    return changes


def _padded_bias(plain: Callable, layouts: list[TextLayout]) -> Callable:
    """Returns a method that makes the bias of 1 x heads x queries x keys for the padded form of a row."""

    @functools.wraps(getattr(plain, "__func__", plain))
    def compute_position_bias(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        like = x.new_empty((1, layouts[-1].length)) if layouts else x
        return plain(like, *args, **kwargs)

    return compute_position_bias


def _attention(plain: Callable) -> Callable:
    """Returns a forward() of MPNet's attention that takes a row with the mask of a row."""

    @functools.wraps(getattr(plain, "__func__", plain))
    def forward(
        self: Any, hidden_states: torch.Tensor, attention_mask: Any = None, position_bias: Any = None, **kwargs: Any
    ) -> Any:
        layout = attention_mask.layout if isinstance(attention_mask, ChunkedMask) else None
        if layout is None:
            return plain(hidden_states, attention_mask, position_bias, **kwargs)
        query, key, value = (
            layout.to_padded_unmasked(each(hidden_states))
            .unflatten(-1, (self.num_attention_heads, -1))
            .transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.attention_head_size)
        scores = scores + position_bias + attention_mask.for_padded(True, hidden_states.dtype)
        attended = self.dropout(scores.softmax(-1)) @ value
        return (self.o(layout.to_row(attended.transpose(1, 2).flatten(2))),)

    return forward
