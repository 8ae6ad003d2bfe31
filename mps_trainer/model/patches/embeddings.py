"""Gradients of large embeddings on the CPU, added up where they are kept.

torch makes a gradient of the whole table for each batch: for 30,522 words by 384 numbers 47 MB, which the system hands
out anew each time, page by page, and which are filled with zeros for the few hundred rows that a batch touches, to be
added to the gradient of the batch before.

Gain, by `python -m benchmarks.patches`: a step of MiniLM with two batches of 16, as length buckets give them, takes
0.94 of the processor time (0.90 to 1.04 in 7 rounds). With one batch a step there is none (1.01).
"""

from __future__ import annotations

import contextlib
import copyreg
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ...training_args import TrainingArguments
from ...utils.overrides import Overrides

LARGE = 32 * 2**20  # bytes, from which on the C library asks the system for memory each time
KEPT = "_kept_gradient"


class _Kept:
    """The memory of a gradient from one update to the next."""

    gradient: torch.Tensor | None = None

    def zeros_like(self, weight: torch.Tensor) -> torch.Tensor:
        # two references are those of this line; who has another keeps an update's gradient to look at later
        if self.gradient is None or sys.getrefcount(self.gradient) > 2:
            self.gradient = torch.empty_like(weight)
        return self.gradient.zero_()


class _Rows(torch.autograd.Function):
    """Rows of a weight, whose gradient goes straight into `weight.grad`."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, input: torch.Tensor, padding_idx: int | None, kept: _Kept) -> Any:
        ctx.save_for_backward(input)
        ctx.weight, ctx.padding_idx, ctx.kept = weight, padding_idx, kept
        return nn.functional.embedding(input, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (input,) = ctx.saved_tensors
        weight, padding = ctx.weight, ctx.padding_idx
        if weight.grad is None:
            weight.grad = ctx.kept.zeros_like(weight)
        of_padding = None if padding is None else weight.grad[padding].clone()
        weight.grad.index_add_(0, input.reshape(-1), gradient.reshape(-1, gradient.shape[-1]))
        if padding is not None:
            weight.grad[padding] = of_padding  # nothing is learned there
        return None, None, None, None


class InPlaceEmbedding(nn.Embedding):
    """`nn.Embedding` with such a gradient. In a sum over several batches, its rounding may differ."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if not (torch.is_grad_enabled() and weight.requires_grad and weight.is_leaf) or _is_watched(weight):
            return super().forward(input)
        return _Rows.apply(weight, input, self.padding_idx, getattr(self, KEPT))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Makes copies, and what is saved of a model during a run, `nn.Embedding`s."""
        state = {name: value for name, value in self.__dict__.items() if name != KEPT}
        return copyreg._reconstructor, (nn.Embedding, object, None), state  # type: ignore[attr-defined]


@contextlib.contextmanager
def embedding_gradients_in_place(
    model: nn.Module, args: TrainingArguments, device: torch.device, is_distributed: bool, overrides: Overrides
) -> Iterator[None]:
    """Makes the large embeddings of `model` InPlaceEmbeddings inside, on the CPU in one process.

    Args:
        overrides: a training_step or compute_loss of a subclass may ask autograd for gradients.
    """
    possible = device.type == "cpu" and not is_distributed and not args.torch_compile
    modules = [module for module in model.modules() if _gains(module)] if possible else []
    if modules and not overrides.allow("adding up embedding gradients in place", "training_step", "compute_loss"):
        modules = []
    for module in modules:
        module.__class__ = InPlaceEmbedding
        setattr(module, KEPT, _Kept())
    try:
        yield
    finally:
        for module in modules:
            module.__class__ = nn.Embedding
            delattr(module, KEPT)


def _gains(module: nn.Module) -> bool:
    if type(module) is not nn.Embedding or "forward" in vars(module):
        return False
    weight = module.weight
    as_usual = module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return as_usual and weight.dtype == torch.float32 and weight.nbytes >= LARGE


def _is_watched(weight: torch.Tensor) -> bool:
    """Returns True if a hook waits for the gradient, which would not reach it here."""
    return bool(weight._backward_hooks) or bool(getattr(weight, "_post_accumulate_grad_hooks", None))
