"""Finds matrix products that M1 and M2 compute wrong because they sum too many numbers.

A matrix of m by k times one of k by n is wrong where k is at least 32,767, and m and n at least 16. A linear layer
makes three such products: k is its inputs in the forward pass, its outputs (the vocabulary, in the head of a language
model) in the gradient of its input, and the tokens of a batch in the gradient of its weight. pytorch issues 177116
(2-D, before torch 2.14) and 195163 (batched, in every torch so far).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .facts import parse_version

if TYPE_CHECKING:
    import torch

INNER, OUTER = 32_767, 16
MENDED_IN_2D = (2, 14)


@dataclass(frozen=True)
class Product:
    """A matrix of `rows` by `inner` times one of `inner` by `columns`; `batched`: many of them at once."""

    rows: int
    inner: int
    columns: int
    batched: bool = False

    def may_be_wrong(self, torch_version: str) -> bool:
        """Returns True if M1 and M2 compute it wrong with this torch."""
        large = self.inner >= INNER and min(self.rows, self.columns) >= OUTER
        return large and (self.batched or parse_version(torch_version) < MENDED_IN_2D)


@dataclass(frozen=True)
class Layer:
    """A linear layer; `learns` says whether its weight does."""

    inputs: int
    outputs: int
    learns: bool = True

    def has_large_gradient(self, tokens: int) -> bool:
        """Returns True if the gradient of its weight, from a batch of so many tokens, is such a product."""
        return self.learns and tokens >= INNER and min(self.inputs, self.outputs) >= OUTER


def product(left: torch.Tensor, right: torch.Tensor, most: int | None = INNER - 1) -> torch.Tensor:
    """Returns `left @ right`, summed in parts of at most `most` numbers each; None for one part.

    Without parts, M1 and M2 compute a longer sum wrong, or, in 2-D from torch 2.14 on, with kernels that make 1.1 to
    1.4 instead of 7.8 to 12 TFLOPS on an M4 Max (pytorch issue 198182).

    Args:
        left, right: matrices, or as many of them each.
    """
    length = left.shape[-1]
    if most is None or length <= most:
        return left @ right
    parts = zip(left.split(most, -1), right.split(most, -2), strict=True)
    first, second = next(parts)
    total = first @ second
    for first, second in parts:
        total += first @ second
    return total


def warning_of_width(layers: Mapping[str, Layer], torch_version: str) -> str | None:
    """Returns the warning for a model that an M1 or M2 is to train; None if it needs none."""
    sizes = {name: sorted((layer.inputs, layer.outputs)) for name, layer in layers.items()}
    names = [name for name, (narrow, wide) in sizes.items() if wide >= INNER and narrow >= OUTER]
    if not names:
        return None
    size = sizes[names[0]][1]
    if layers[names[0]].outputs == size:
        return _warning(f"Gradients that come through {_first(names)} ({size:,} outputs)", torch_version)
    return _warning(f"Outputs of {_first(names)} ({size:,} inputs)", torch_version)


def warning_of_tokens(layers: Mapping[str, Layer], tokens: int, torch_version: str) -> str | None:
    """Returns the warning for a batch of so many tokens; None if it needs none."""
    names = [name for name, layer in layers.items() if layer.has_large_gradient(tokens)]
    if not names:
        return None
    return (
        _warning(f"Gradients of {_first(names)}, from a batch of {tokens:,} tokens,", torch_version)
        + " Until then keep batch size times length below 32,767, with gradient_accumulation_steps for the rest."
    )


def _warning(what: str, torch_version: str) -> str:
    return (
        f"{what} may be wrong: torch {torch_version} computes matrix products that sum {INNER:,} "
        f"numbers or more wrong on M1 and M2 (pytorch issue 177116). Install torch 2.14 or later: "
        f"python -m pip install -U 'torch>=2.14'."
    )


def _first(names: Sequence[str]) -> str:
    more = len(names) - 1
    return names[0] + (f" and {more} more layer{'s' if more > 1 else ''}" if more else "")
