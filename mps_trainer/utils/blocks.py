"""Divides work on a long dimension into blocks."""

from __future__ import annotations

from collections.abc import Iterable


def slices(length: int, size: int) -> Iterable[slice]:
    """Returns the blocks of `size` in order; the last may be shorter."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
