"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from ..amounts import format_bytes
from ..errors import MisconfigurationException

__all__ = ["format_bytes", "parse_bytes"]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(amount: int | str) -> int:
    """16, "16GB", "512 MiB", "1.5g": a number of bytes. A gigabyte is 2**30, as on the label of a Mac.

    Raises MisconfigurationException for anything else, and for less than one byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(amount), flags=re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise MisconfigurationException(
            f"memory={amount!r} is no amount of memory. Write a number with a unit, for example 16GB or 512MB."
        )
    return size
