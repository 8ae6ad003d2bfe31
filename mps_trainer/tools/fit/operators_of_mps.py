"""Makes linear layers and dropout on the CPU save the same tensors for the backward pass as on mps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...devices.facts import parse_version


class _Linear(torch.autograd.Function):
    """Computes a linear layer as one operator, as on mps: it saves its input even if its weight needs no gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight)
        rows = hidden.reshape(-1, hidden.shape[-1])
        result = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
        # Not a view(): autograd refuses in-place changes of a view that a Function returns.
        return torch.ops.aten._unsafe_view.default(result, [*hidden.shape[:-1], len(weight)])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        hidden, weight = ctx.saved_tensors
        needed, rows = ctx.needs_input_grad, grad.reshape(-1, grad.shape[-1])
        of_hidden = (rows @ weight).view_as(hidden) if needed[0] else None
        of_weight = rows.t() @ hidden.reshape(-1, hidden.shape[-1]) if needed[1] else None
        return of_hidden, of_weight, rows.sum(0) if needed[2] else None


def _linear(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if weight.dim() == 2:
        return _Linear.apply(hidden, weight, bias)
    return hidden @ weight if bias is None else hidden @ weight + bias


def _dropout(hidden: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Keeps a mask of booleans for the backward pass, where the CPU keeps one of the input's format."""
    return torch.native_dropout(hidden, p, True)[0] if train and p > 0 else hidden


def operators_of_mps() -> dict[str, Callable]:
    """Returns the replacements for the operators of these names."""
    is_fused = parse_version(torch.__version__) >= (2, 15)  # earlier ones have the kernel, and do not use it
    return {"linear": _linear, **({"dropout": _dropout} if is_fused else {})}
