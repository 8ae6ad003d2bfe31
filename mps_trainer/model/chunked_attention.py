"""Exact attention in linear memory, for training with long texts.

With gradients, torch's attention on mps keeps the scores of all pairs of tokens for each head (its fused kernel has no
backward pass there). Here the scores exist for one block of queries at a time: the forward pass keeps none of them,
and the backward pass computes each block again. Blocks of keys that a causal mask or a sliding window hides from a
whole block of queries are not computed.

Where torch has a fused kernel for the forward pass, that computes it. The backward pass needs nothing from it: a block
has all keys that its queries see, and so their softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..devices.fused_attention import FEWEST_QUERIES, is_fused
from ..devices.large_products import product
from ..utils import blocks
from .attention_masks import ChunkedMask, GivenMask

ROWS = 256  # queries in a block
BLOCK = 32 * 2**20  # bytes of a block's scores; three such tensors exist at a time, more with dropout
_SPANS_OF_BLOCK = 3  # a text takes two operators with the fused kernel, and a block at least six


def chunked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: ChunkedMask | GivenMask,
    scale: float,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Returns softmax(scale * query @ key.T) @ value without keeping the scores. Computes in float32 or float64.

    Args:
        query: of batch x heads x queries x size.
        key, value: of batch x key heads x keys x size; each key head serves as many query heads as there are for it.
        dropout: the share of weights that are dropped. The backward pass draws the same numbers again, from a seed
            that torch's generator of the CPU gives, which no device has to be asked for.

    Returns:
        A tensor of batch x queries x heads x size, in the type of `query`.
    """
    seed = int(torch.randint(2**62, (), device="cpu")) if dropout else 0
    given = mask.whole if isinstance(mask, GivenMask) else None
    out: torch.Tensor
    with torch.autocast(query.device.type, enabled=False):
        out = _ChunkedAttention.apply(query, key, value, given, mask, scale, dropout, seed)
    return out


class _ChunkedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, given: Any, mask: Any, scale: float, dropout: float, seed: int
    ) -> Any:
        out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        if dropout or not _attend_fused(out, query, key, value, mask, scale):
            for block in _blocks(query, key, value, mask, scale, dropout, seed):
                values = block.values[:, block.seen]
                block.of(out.transpose(1, 2)).copy_(block.unflat(product(block.dropped(), values)))
        ctx.save_for_backward(query, key, value, given)  # the backward pass then raises if one has changed
        ctx.settings = mask, scale, dropout, seed
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, _ = ctx.saved_tensors
        mask, scale, dropout, seed = ctx.settings
        grads = [torch.empty_like(each) for each in (query, key, value)]
        sums: tuple[Any, Any] = (None, None)  # the gradients of the keys and values of the heads at hand
        with torch.autocast(query.device.type, enabled=False):
            for block in _blocks(query, key, value, mask, scale, dropout, seed):
                if block.rows.start == 0:  # the first block of its heads
                    sums = torch.zeros_like(block.keys), torch.zeros_like(block.values)
                of_key, of_value = (each[:, block.seen] for each in sums)
                out = block.of(grad.transpose(1, 2)).flatten(2, 3).flatten(0, 1).to(block.weights.dtype)
                of_value.baddbmm_(block.dropped().transpose(1, 2), out)
                weights = torch.bmm(out, block.values[:, block.seen].transpose(1, 2))
                if block.kept is not None:
                    weights.mul_(block.kept)
                scores = torch.ops.aten._softmax_backward_data(weights, block.weights, -1, weights.dtype)
                del weights
                of_key.baddbmm_(scores.transpose(1, 2), block.queries)
                block.of(grads[0]).copy_(block.unflat(product(scores, block.keys[:, block.seen])).mul_(scale))
                if block.rows.stop == query.shape[2]:
                    for mine, summed in zip(grads[1:], sums, strict=True):
                        mine[:, block.heads].copy_(summed.unflatten(0, (len(mine), -1)))
        return *grads, None, None, None, None, None


def _attend_fused(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: ChunkedMask | GivenMask,
    scale: float,
) -> bool:
    """Writes the attention into `out` by torch's fused kernel; returns False if torch has none for it."""
    if not is_fused(query, key, value) or (found := mask.spans()) is None:
        return False
    spans, is_causal = found
    is_worth_it = len(spans) <= _SPANS_OF_BLOCK * len(list(mask.queries(ROWS)))
    if not is_worth_it or min(each.stop - each.start for each in spans) < FEWEST_QUERIES:
        return False
    for span in spans:
        queries, keys, values = (each[:, :, span] for each in (query, key, value))
        attended = scaled_dot_product_attention(
            queries, keys, values, is_causal=is_causal, scale=scale, enable_gqa=True
        )
        out[:, span].copy_(attended.transpose(1, 2))
    return True


@dataclass
class _Block:
    """Some queries of some key heads, with all keys and values of these heads.

    Attributes:
        heads, rows: the slices of key heads and of queries.
        seen: the slice of the keys that the queries see.
        queries: scaled, of (batch x key heads) x (queries of each key head) x size, like all that is flat.
        weights: the softmax of the scores.
        kept: 0 for a dropped weight, else what dropout multiplies it by; None without dropout.
    """

    heads: slice
    rows: slice
    groups: int
    seen: slice
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    weights: torch.Tensor
    kept: torch.Tensor | None

    def dropped(self) -> torch.Tensor:
        return self.weights if self.kept is None else self.weights * self.kept

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the block of a tensor of batch x heads x queries x size, with key heads x groups for its heads."""
        return tensor.unflatten(1, (-1, self.groups))[:, self.heads, :, self.rows]

    def unflat(self, part: torch.Tensor) -> torch.Tensor:
        count = self.heads.stop - self.heads.start
        return part.view(part.shape[0] // count, count, self.groups, self.rows.stop - self.rows.start, -1)


def _blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: ChunkedMask | GivenMask,
    scale: float,
    dropout: float,
    seed: int,
) -> Iterator[_Block]:
    """Yields the blocks with their weights, in the same order and with the same dropout each time."""
    batch, key_heads, kv_length, _ = key.shape
    groups, q_length = query.shape[1] // key_heads, query.shape[2]
    kind = torch.float64 if query.dtype is torch.float64 else torch.float32
    rows, heads = _sizes(batch, key_heads, groups, q_length, kv_length, kind.itemsize)
    generator = torch.Generator(query.device).manual_seed(seed) if dropout else None
    grouped = query.unflatten(1, (key_heads, groups))
    for here in blocks.slices(key_heads, heads):
        keys, values = (each[:, here].flatten(0, 1).to(kind) for each in (key, value))
        for part in mask.queries(rows):
            first, last = mask.keys(part.start, part.stop)
            queries = grouped[:, here, :, part].flatten(2, 3).flatten(0, 1).to(kind) * scale
            scores = torch.bmm(queries, keys[:, first:last].transpose(1, 2))
            shape = batch, here.stop - here.start, groups, part.stop - part.start, last - first
            weights = mask.softmax(scores.view(shape), part.start, first).view(scores.shape)
            del scores
            kept = None
            if generator is not None:
                kept = torch.empty_like(weights).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)
            yield _Block(here, part, groups, slice(first, last), queries, keys, values, weights, kept)


def _sizes(batch: int, key_heads: int, groups: int, q_length: int, kv_length: int, itemsize: int) -> tuple[int, int]:
    """Returns the queries and the key heads of a block: as many as fit, fewer heads before fewer queries."""
    rows = min(ROWS, q_length)
    most = BLOCK // itemsize  # scores
    heads = min(most // (batch * groups * rows * kv_length), key_heads)
    if heads == 0:
        return max(most // (batch * groups * kv_length), min(16, rows)), 1
    return rows, heads
