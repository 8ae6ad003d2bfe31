"""Rotary position embeddings in three operators each way, on mps.

transformers rotates queries and keys by a negation, a concatenation, two products and a sum; their gradients take ten
operators more. Here the sines of a step get their signs once, for all layers, and a rotation swaps two halves and
makes two products, and so does its gradient.

Gain, by `python -m benchmarks.patches`: a step of a Llama of two layers has 223 operators, without this 255.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..introspection import is_transformed

NAME = "apply_rotary_pos_emb"


@contextlib.contextmanager
def rotations_in_few_kernels(model: nn.Module, applies: bool) -> Iterator[None]:
    """Inside, the modules of transformers that `model` is made of rotate so, on mps, if they rotate as Llama does."""
    replaced: dict[Any, Callable] = {}
    if applies:
        names = {type(module).__module__ for module in model.modules()}
        homes = (sys.modules.get(name) for name in names if name.startswith("transformers.models."))
        replaced = {home: vars(home)[NAME] for home in homes if home is not None and NAME in vars(home)}
        replaced = {home: plain for home, plain in replaced.items() if is_rotation(plain)}
    made = {home: _Rotation(plain) for home, plain in replaced.items()}
    for home, rotation in made.items():
        setattr(home, NAME, rotation)
    try:
        yield
    finally:
        for home, rotation in made.items():
            if vars(home)[NAME] is rotation:
                setattr(home, NAME, replaced[home])


@functools.cache
def is_rotation(plain: Callable) -> bool:
    """Returns True for a function that rotates queries and keys as Llama does, called with a few numbers."""
    randoms = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, heads, 3, 8, generator=randoms, device="cpu") for heads in (4, 2))
    cos, sin = (torch.randn(2, 3, 8, generator=randoms, device="cpu") for _ in range(2))
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            given = plain(query, key, cos, sin)
    except Exception:  # it wants something else, so it is another
        return False
    expected = tuple(one * cos[:, None] + _swapped(one) * _signed(sin)[:, None] for one in (query, key))
    return isinstance(given, tuple) and len(given) == 2 and all(map(torch.equal, given, expected))


class _Rotation:
    """`apply_rotary_pos_emb` in fewer operators; other arguments than a decoder's go to `plain`."""

    def __init__(self, plain: Callable) -> None:
        self.plain = plain
        functools.update_wrapper(self, plain)
        self.signs: tuple[torch.Tensor, int, tuple[torch.Tensor, torch.Tensor]] | None = None

    def __call__(self, q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or is_transformed() or not _fits(q, k, cos, sin):
            return self.plain(q, k, cos, sin, *args, **kwargs)
        if self.signs is None or self.signs[0] is not sin or self.signs[1] != sin._version:
            signed = _signed(sin)
            # the tables are those of one forward pass: each layer is given the same
            self.signs = sin, sin._version, (signed.unsqueeze(1), _swapped(signed).unsqueeze(1))
        tables = cos.unsqueeze(1), *self.signs[2]
        return _Rotated.apply(q.to(cos.dtype), *tables), _Rotated.apply(k.to(cos.dtype), *tables)


def _fits(q: Any, k: Any, cos: Any, sin: Any) -> bool:
    tensors = (q, k, cos, sin)
    if not all(type(one) is torch.Tensor for one in tensors) or cos.shape != sin.shape or cos.dtype != sin.dtype:
        return False
    same = q.dim() == k.dim() == 4 and cos.dim() == 3 and q.shape[-1] == k.shape[-1] == cos.shape[-1]
    wide = all(torch.promote_types(one.dtype, cos.dtype) == cos.dtype for one in (q, k))
    return same and wide and q.shape[-1] % 2 == 0 and not (cos.requires_grad or sin.requires_grad)


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, vectors: torch.Tensor, cos: torch.Tensor, signed: torch.Tensor, swapped: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(cos, swapped)
        return torch.addcmul(vectors * cos, _swapped(vectors), signed)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        cos, swapped = ctx.saved_tensors
        return torch.addcmul(grad * cos, _swapped(grad), swapped), None, None, None


def _swapped(vectors: torch.Tensor) -> torch.Tensor:
    """Returns `vectors` with their two halves the other way round."""
    half = vectors.shape[-1] // 2
    return torch.cat((vectors[..., half:], vectors[..., :half]), -1)


def _signed(sin: torch.Tensor) -> torch.Tensor:
    """Returns `sin` with a first half that is negative."""
    first, second = sin.chunk(2, -1)
    return torch.cat((-first, second), -1)
