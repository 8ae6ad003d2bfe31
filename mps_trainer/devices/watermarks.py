"""The two limits of torch's allocator on mps, as shares of the maximum that Metal recommends, made to fit each other.

Past the high watermark an allocation fails; past the low one torch gives back buffers that it keeps for later. torch
reads both from the environment when its allocator is made, at the first use of mps in a process. After that the high
one can be set (torch.mps.set_per_process_memory_fraction), the low one cannot. A low one above the high one fails
at that first use, and so does a high one alone that is below torch's own low one: "invalid low watermark ratio 1.4".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

HIGH = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
LOW = "PYTORCH_MPS_LOW_WATERMARK_RATIO"

# torch's own, on a Mac whose processors share the memory. The high one is more than such a Mac has: it swaps before.
_HIGH, _LOW = 1.7, 1.4
MOST = 2.0  # torch takes none above

_NUMBER = re.compile(r"\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Ratio:
    """A limit in the environment, as torch reads it with C's strtod: the number that it begins with, 0 if none."""

    text: str

    @property
    def value(self) -> float:
        number = _NUMBER.match(self.text)
        return float(number[0]) if number else 0.0

    @property
    def is_number(self) -> bool:
        """Returns True if torch reads all of it."""
        return _NUMBER.fullmatch(self.text.rstrip()) is not None


def limits(environ: Mapping[str, str]) -> tuple[float, float]:
    """Returns the high and the low watermark of a run with the default `memory_fraction`, from the environment."""
    high = Ratio(environ[HIGH]).value if HIGH in environ else memory_limit(None)
    if LOW in environ:
        return high, Ratio(environ[LOW]).value
    return high, high * _LOW / _HIGH if 0 < high < _HIGH else _LOW


def memory_limit(fraction: float | None) -> float:
    """Returns the limit for a `memory_fraction`: by default all that Metal recommends, past which a Mac swaps."""
    return 1.0 if fraction is None else fraction


def settle_low(environ: MutableMapping[str, str], high: float | None = None) -> None:
    """Sets the low watermark in `environ` where it would not fit the high one; one that is set there stays.

    Args:
        high: the high watermark that will be set later. One in `environ` goes before it.
    """
    if HIGH in environ:
        high = Ratio(environ[HIGH]).value
    if high is not None and LOW not in environ and 0 < high < _HIGH:
        environ[LOW] = f"{high * _LOW / _HIGH:.2f}"
