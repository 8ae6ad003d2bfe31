"""Divides work on a long dimension into blocks."""

from __future__ import annotations

from collections.abc import Iterable


def starts(length: int, size: int) -> Iterable[int]:
    """Returns where blocks of `size` begin. `mps-trainer fit` computes the first and the last alone."""
    return range(0, length, size)
