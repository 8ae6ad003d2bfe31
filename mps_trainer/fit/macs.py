"""Lists the memory sizes of Macs and the memory that Metal recommends for the GPU."""

from __future__ import annotations

GIB = 2**30
# Two thirds up to 32 GB and three quarters from 36 GB on, as users reported: 28,991 MB on a Mac of 36 GB, 107.5 GiB on
# one of 128 GB with macOS 26. One M3 with 16 GB recommends more, 11.8 GiB.
_LIMITS = {128: 107.5 * GIB}
SIZES = (8, 16, 24, 32, 36, 48, 64, 96, 128)  # GB


def limit_of(size: int) -> int:
    """Returns the maximum that Metal recommends on a Mac with this many GB of memory, in bytes."""
    return round(_LIMITS.get(size, size * GIB * (2 / 3 if size < 36 else 3 / 4)))


def smallest_for(peak: int) -> int | None:
    """Returns the memory, in GB, of the smallest Mac that a step with this peak fits on; None if there is none."""
    return next((size for size in SIZES if peak <= limit_of(size)), None)
