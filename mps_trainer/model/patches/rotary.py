"""Rotary position embeddings in three operators each way, on mps.

transformers rotates queries and keys by a negation, a concatenation, two products and a sum, and their gradients take
ten operators more. Here the sines get their signs once for all layers, and a rotation swaps two halves and makes two
products, and so does its gradient.

Gain, by `python -m benchmarks.patches`: a step of a Llama of two layers has 227 operators, without this 259.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...utils.attributes import attributes_replaced
from ..attention_registries import is_of_transformers
from ..introspection import is_transformed

NAME = "apply_rotary_pos_emb"


def rotations_in_few_kernels(model: nn.Module, applies: bool) -> contextlib.AbstractContextManager[None]:
    """Inside, the modules of transformers that `model` is made of rotate so, on mps, if they rotate as Llama does."""
    names = {type(module).__module__ for module in model.modules()} if applies else set()
    homes = [sys.modules[name] for name in sorted(names) if name.startswith("transformers.models.")]
    plain = {home: vars(home)[NAME] for home in homes if NAME in vars(home)}
    own = {home: each for home, each in plain.items() if is_of_transformers(each) and is_rotation(each)}
    return attributes_replaced((home, NAME, _replacing(each)) for home, each in own.items())


@functools.cache
def is_rotation(plain: Callable) -> bool:
    """Returns True for a function that rotates queries and keys as Llama does, called with a few numbers."""
    randoms = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, heads, 3, 8, generator=randoms, device="cpu") for heads in (4, 2))
    cos, sin = (torch.randn(2, 3, 8, generator=randoms, device="cpu") for _ in range(2))
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            given = plain(query, key, cos, sin)
    except Exception:  # it needs other arguments: not the rotation of Llama
        return False
    expected = tuple(one * cos[:, None] + _swapped(one) * _signed(sin)[:, None] for one in (query, key))
    return isinstance(given, tuple) and len(given) == 2 and all(map(torch.equal, given, expected))


def _replacing(plain: Callable) -> Callable:
    """Returns `plain`, a rotation, in fewer operators for the arguments of a decoder."""
    signed = _Signed()

    @functools.wraps(plain)
    def rotate(q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or is_transformed() or not _fits(q, k, cos, sin):
            return plain(q, k, cos, sin, *args, **kwargs)
        tables = cos.unsqueeze(1), signed(sin).unsqueeze(1)
        return _Rotated.apply(q.to(cos.dtype), *tables), _Rotated.apply(k.to(cos.dtype), *tables)

    return rotate


def _fits(q: Any, k: Any, cos: Any, sin: Any) -> bool:
    tensors = (q, k, cos, sin)
    if not all(type(one) is torch.Tensor for one in tensors) or cos.shape != sin.shape or cos.dtype != sin.dtype:
        return False
    same = q.dim() == k.dim() == 4 and cos.dim() == 3 and q.shape[-1] == k.shape[-1] == cos.shape[-1]
    wide = all(torch.promote_types(one.dtype, cos.dtype) == cos.dtype for one in (q, k))
    return same and wide and q.shape[-1] % 2 == 0 and not (cos.requires_grad or sin.requires_grad)


class _Signed:
    """Returns `_signed(sin)`, and keeps the last result, because all layers of a model get the same sines."""

    def __init__(self) -> None:
        self._sin: torch.Tensor | None = None
        self._version = 0
        self._signed: torch.Tensor | None = None

    def __call__(self, sin: torch.Tensor) -> torch.Tensor:
        if sin.is_inference() or torch.is_inference_mode_enabled():  # autograd cannot use tensors of inference mode
            return _signed(sin)
        if self._signed is None or sin is not self._sin or sin._version != self._version:
            self._sin, self._version, self._signed = sin, sin._version, _signed(sin)
        return self._signed


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, cos: torch.Tensor, signed: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, signed)
        return torch.addcmul(vectors * cos, _swapped(vectors), signed)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        cos, signed = ctx.saved_tensors
        return torch.addcmul(_swapped(grad * signed), grad, cos), None, None


def _swapped(vectors: torch.Tensor) -> torch.Tensor:
    """Returns `vectors` with their two halves the other way round."""
    first, second = vectors.chunk(2, -1)
    return torch.cat((second, first), -1)


def _signed(sin: torch.Tensor) -> torch.Tensor:
    """Returns `sin` with a first half that is negative."""
    first, second = sin.chunk(2, -1)
    return torch.cat((-first, second), -1)
