"""RMS norms whose gradient is seven operators, not fourteen, on mps, and which are one operator without a gradient.

torch has a kernel for the RMS norm on mps, but none for its gradient, so that `torch.nn.functional.rms_norm` is made
of as many operators as transformers' own where a gradient is needed. Here that forward pass is transformers', number
for number, and the gradient is written out. Evaluation uses torch's kernel, which rounds once.

Gain, by `python -m benchmarks.patches`: a step of a Llama of two layers has 227 operators, without this 262. A forward
pass without gradients has 66, without this 91 (tests/model/test_llama_operators.py).
"""

from __future__ import annotations

import contextlib
import functools
from types import MethodType
from typing import Any

import torch
from torch import nn

from ...utils.attributes import attributes_replaced
from ..introspection import is_transformed


def norms_in_few_kernels(model: nn.Module, applies: bool) -> contextlib.AbstractContextManager[None]:
    """Replaces the forward of Llama-like RMS norms of `model` while it is active, if it `applies`."""
    norms: list[tuple[nn.Module, Any]] = [(one, type(one)) for one in model.modules() if applies]
    norms = [(one, kind) for one, kind in norms if "forward" not in vars(one) and is_rms_norm(kind)]
    return attributes_replaced((norm, "forward", MethodType(forward, norm)) for norm, _ in norms)


def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Computes the forward pass of a norm."""
    if is_transformed():
        return type(self).forward(self, hidden_states)
    if not torch.is_grad_enabled() and hidden_states.dtype == self.weight.dtype:
        return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)
    return _RMSNorm.apply(hidden_states, self.weight, self.variance_epsilon)


@functools.cache
def is_rms_norm(kind: Any) -> bool:
    """Returns True for a class of transformers whose norm is Llama's.

    It is called with a few numbers: others add 1 to the weight, or multiply with it before they round.
    """
    if not kind.__module__.startswith("transformers.models.") or not kind.__name__.endswith("RMSNorm"):
        return False
    randoms = torch.Generator().manual_seed(0)
    norm: Any = nn.Module.__new__(kind)
    nn.Module.__init__(norm)
    norm.weight = nn.Parameter(torch.randn(16, generator=randoms, device="cpu"))
    norm.variance_epsilon = 0.1
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.randn(2, 3, 16, generator=randoms, device="cpu").to(dtype)
        try:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                given = kind.forward(norm, rows)
        except Exception:  # it needs other attributes: not a Llama RMSNorm
            return False
        expected = _forward(rows, norm.weight.detach(), 0.1)[0]
        if not isinstance(given, torch.Tensor) or given.dtype != expected.dtype or not torch.equal(given, expected):
            return False
    return True


def _forward(
    hidden: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the norm, that before the weight in float32, and what each row was multiplied by."""
    rows = hidden.to(torch.float32)
    scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + epsilon)
    normed = rows * scale
    return weight * normed.to(hidden.dtype), normed, scale


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        result, normed, scale = _forward(hidden, weight, epsilon)
        ctx.save_for_backward(hidden, weight, normed, scale)
        ctx.epsilon = epsilon
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        hidden, weight, normed, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted, which goes through these as well
            _, normed, scale = _forward(hidden, weight, ctx.epsilon)
        of_hidden = of_weight = None
        if ctx.needs_input_grad[0]:
            of_normed = (grad * weight).to(hidden.dtype).to(torch.float32)
            along = (of_normed * normed).mean(-1, keepdim=True)
            of_hidden = torch.addcmul(of_normed, normed, along, value=-1).mul_(scale).to(hidden.dtype)
        if ctx.needs_input_grad[1]:
            of_each = grad * normed.to(hidden.dtype)
            of_weight = of_each.sum(tuple(range(grad.dim() - 1))).to(weight.dtype)
        return of_hidden, of_weight, None
