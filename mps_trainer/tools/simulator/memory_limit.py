"""Reads the memory limit of the simulated device, without importing torch."""

from __future__ import annotations

import os
import re

from ...devices.watermarks import HIGH, MOST, Ratio
from ...errors import MisconfigurationException

# Metal recommends two thirds on a Mac of 24 GB.
DEFAULT_MEMORY = "16GB"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(amount: int | str) -> int:
    """Returns the number of bytes in an amount such as 4096, "16GB", "512 MiB" or "1.5g".

    A gigabyte is 2**30, as on the label of a Mac. A text needs a unit: `--memory 16` does not mean bytes.

    Raises:
        MisconfigurationException: for anything else, and for less than one byte.
    """
    text = amount if isinstance(amount, str) else f"{amount}B"
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)\s*", text, flags=re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[(match[2] or "").upper()]) if match else 0
    if size < 1:
        raise MisconfigurationException(
            f"memory={amount!r} is not an amount of memory. Write a number with a unit, for example 16GB or 512MB."
        )
    return size


def high_watermark() -> float:
    """Returns the fraction of the recommended maximum beyond which an allocation fails; 0 for no limit."""
    ratio = Ratio(os.environ.get(HIGH, "1.0"))
    if not (ratio.is_number and 0 <= ratio.value <= MOST):
        raise MisconfigurationException(
            f"{HIGH} is {ratio.text!r}, and must be between 0.0 (no limit) and 2.0. Unset it, or set it to 1.0."
        )
    return ratio.value
