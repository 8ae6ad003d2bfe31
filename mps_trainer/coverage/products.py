"""The matrix product that an operator computes, from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..devices.large_products import Product

# Which of the tensors are the factors.
_FACTORS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "addbmm": (1, 2), "linear": (0, 1)}


def matrix_product(name: str, tensors: Sequence[Tensor]) -> Product | None:
    """The product of the operator `name`, such as "aten::addmm.out"; None if it is none.

    Args:
        tensors: those among its arguments, in their order.
    """
    operator = name.removeprefix("aten::").partition(".")[0].rstrip("_")
    if operator not in _FACTORS or not name.startswith("aten::"):
        return None
    left, right = (tensors[position] for position in _FACTORS[operator])
    if operator == "linear":
        return Product(left.shape[:-1].numel(), left.shape[-1], right.shape[0])
    return Product(left.shape[-2], left.shape[-1], right.shape[-1], batched=left.dim() == 3)
