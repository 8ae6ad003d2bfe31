"""Computes the cross entropy of a linear layer in chunks of its logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

# Bytes of float32 logits that exist at a time. Of the plain loss's processor time, for 512 rows of 512 numbers and
# 65,536 words, 32 MiB take 1.10 and 64 MiB 1.01; with a frozen head 1.25 and 1.04.
CHUNK = 64 * 2**20


class Head(NamedTuple):
    """A linear layer as it computes: in the number format of autocast, with products over at most `most_words` words.

    Args:
        weight: words x width.
        bias: one number for each word.
        most_words: words that one product may sum over. Default: all.
        autocast: the number format of autocast. Default: that of the weight.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    most_words: int | None = None
    autocast: torch.dtype | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Returns the number format of the logits."""
        return self.autocast or self.weight.dtype

    def operands(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns input, weight and bias in one number format."""
        return (
            hidden.to(self.dtype),
            self.weight.to(self.dtype),
            None if self.bias is None else self.bias.to(self.dtype),
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits of `hidden`."""

        def compute() -> torch.Tensor:
            return nn.functional.linear(*self.operands(hidden))

        return compute() if self.most_words is None else self.with_gradients(hidden, compute)

    def with_gradients(self, hidden: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Returns what `make` returns, logits or a stand-in for them, with the gradients of the layer."""
        return _Linear.apply(hidden, self.weight, self.bias, self, make)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: Any, bias: Any, head: Head, make: Any) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # stand-ins that were not read have no gradient
        learns_hidden, learns_weight, *_ = ctx.needs_input_grad
        # A layer saves what it needs, so that a frozen one allows later changes of its input.
        ctx.save_for_backward(hidden if learns_weight else None, weight if learns_hidden else None)
        ctx.most_words, ctx.dtype = head.most_words, head.dtype
        return make()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        (hidden, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
        if grad is None:
            return None, None, None, None, None
        grad, of_hidden, of_weight = grad.to(ctx.dtype), None, None
        rows = grad.reshape(-1, grad.shape[-1])
        if needed[0]:
            of_hidden = product(rows, weight.to(ctx.dtype), ctx.most_words).view(*grad.shape[:-1], -1)
        if needed[1]:
            of_weight = rows.T @ hidden.reshape(-1, hidden.shape[-1]).to(ctx.dtype)
        return of_hidden, of_weight, rows.sum(0) if needed[2] else None, None, None


def chunked_cross_entropy(
    hidden: torch.Tensor,
    head: Head,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    logits: Any = None,
) -> torch.Tensor:
    """Returns `cross_entropy(head.logits(hidden).float(), target)` in float32.

    The gradients are computed with the loss, those of what requires one: none of a frozen weight. A second backward
    pass, and one with `create_graph=True`, compute all logits at once. Without a target that counts, the gradients are
    0, as torch's are. In 16 bits the gradient of the weight is a sum of rounded sums, one for each chunk: of 64 chunks
    its error is 0.5 %, without chunks 0.2 %.

    Args:
        hidden: rows x width.
        target: a word for each row, or `ignore_index`.
        reduction: "mean" over the rows that count, or "sum".
        logits: a stand-in for the logits, rows x words. It gets the gradient in place of `hidden` and the layer when
            its `is_watched()` returns True, or when the gradient of nothing else is asked for.
    """
    return _ChunkedCrossEntropy.apply(hidden, head.weight, head.bias, logits, head, target, ignore_index, reduction)


def rows_of_chunk(rows: int, words: int) -> int:
    """Returns the number of rows of a chunk: a power of two, or all of them."""
    return min(1 << (max(CHUNK // (4 * words), 1).bit_length() - 1), rows)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        logits: Any,
        head: Head,
        target: torch.Tensor,
        ignore_index: int,
        reduction: str,
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight, bias, target)
        ctx.logits, ctx.head = logits, head._replace(weight=None, bias=None)  # type: ignore[arg-type]
        ctx.settings = {"ignore_index": ignore_index, "reduction": reduction}
        needed = ctx.needs_input_grad[:3]
        hidden, weight, bias = head.operands(hidden)
        grad_hidden = torch.empty_like(hidden) if needed[0] else None
        grad_weight = torch.zeros_like(weight) if needed[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and needed[2] else None
        counts = target.ne(ignore_index).unsqueeze(1)
        share, words = counts.float(), torch.where(counts.squeeze(1), target, 0).unsqueeze(1)
        minus, size = -share, rows_of_chunk(len(hidden), len(weight))
        rows = hidden.masked_fill(~counts, 0)  # one that is ignored may hold anything
        totals, at_targets = [], []
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            chunk = nn.functional.linear(rows[part], weight, bias).float()
            chunk.sub_(chunk.amax(1, keepdim=True))
            at_target = chunk.gather(1, words[part])
            total = chunk.exp_().sum(1, keepdim=True)
            totals.append(total)
            at_targets.append(at_target)
            if not any(needed):
                continue
            # the gradient of the logits in a sum of the losses: their softmax, less one at the target
            chunk.mul_(share[part] / total).scatter_add_(1, words[part], minus[part])
            if grad_bias is not None:
                grad_bias += chunk.sum(0)
            of_logits = chunk.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = product(of_logits, weight, head.most_words)
            if grad_weight is not None:
                grad_weight.addmm_(of_logits.T, rows[part])
            del chunk, of_logits  # before the next ones are made
        ctx.grads, number = (grad_hidden, grad_weight, grad_bias), counts.sum()
        ctx.number = number if reduction == "mean" else torch.ones_like(number)
        ctx.any_counts = number > 0
        loss = torch.where(counts, torch.cat(totals).log() - torch.cat(at_targets), 0).sum()
        return loss / ctx.number

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        of_hidden_and_layer, of_logits = ctx.needs_input_grad[:3], ctx.needs_input_grad[3]
        of_logits = of_logits and (not any(of_hidden_and_layer) or ctx.logits.is_watched())
        if of_logits or ctx.grads is None or torch.is_grad_enabled():
            grads = _plain_gradients(ctx, grad, of_logits)
        else:
            grads, ctx.grads = ctx.grads, None
            # here, as a mean's gradients may be too small for float16 before they are scaled
            scale = torch.where(ctx.any_counts, grad / ctx.number, 0)
            grads = *(None if one is None else one.mul_(scale) for one in grads), None
        return *grads, None, None, None, None


def _plain_gradients(ctx: Any, grad: torch.Tensor, of_logits: bool) -> tuple[torch.Tensor | None, ...]:
    """Returns the gradients of input, weight, bias and logits, which can be differentiated again."""
    *inputs, target = ctx.saved_tensors
    with torch.enable_grad():
        logits = ctx.head._replace(weight=inputs[1], bias=inputs[2]).logits(inputs[0])
        if ctx.logits is not None:
            logits = logits.to(ctx.logits.dtype)
        loss = nn.functional.cross_entropy(logits.float(), target, **ctx.settings)
    inputs.append(logits)
    needed = [number == 3 if of_logits else number < 3 and ctx.needs_input_grad[number] for number in range(4)]
    asked = [one for one, is_needed in zip(inputs, needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(loss, asked, grad, create_graph=torch.is_grad_enabled()))
    return tuple(next(found) if is_needed else None for is_needed in needed)


def product(rows: torch.Tensor, weight: torch.Tensor, most_words: int | None) -> torch.Tensor:
    """Returns `rows @ weight`, as a sum of products over at most `most_words` words each."""
    if most_words is None or len(weight) <= most_words:
        return rows @ weight
    parts = zip(rows.split(most_words, 1), weight.split(most_words), strict=True)
    return sum((part @ words for part, words in parts), start=torch.zeros((), dtype=rows.dtype, device=rows.device))
