"""Finds matrix products that M1 and M2 compute wrong because they sum too many numbers.

A matrix of m by k times one of k by n is wrong where k is at least 32,767, and m and n at least 16. A linear layer
makes three such products: k is its inputs in the forward pass, its outputs (the vocabulary, in the head of a language
model) in the gradient of its input, and the tokens of a batch in the gradient of its weight. pytorch issues 177116
(2-D, before torch 2.14) and 195163 (batched, in every torch so far).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

INNER, OUTER = 32_767, 16
MENDED_IN_2D = (2, 14)


def product(left: torch.Tensor, right: torch.Tensor, most: int | None = INNER - 1) -> torch.Tensor:
    """Returns `left @ right`, summed in parts of at most `most` numbers each; None for one part.

    Without parts, M1 and M2 compute a longer sum wrong, or, in 2-D from torch 2.14 on, with kernels that make 1.1 to
    1.4 instead of 7.8 to 12 TFLOPS on an M4 Max (pytorch issue 198182).
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
