"""Lists the memory sizes of Macs and the memory that Metal recommends for the GPU."""

from __future__ import annotations

GIB = 2**30
SIZES = (8, 16, 24, 32, 36, 48, 64, 96, 128)  # GB
# What llama.cpp's logs show on many Macs with macOS 15 and later ("use residency sets = true"), in GiB. 16: also
# llmfit pull request 754; 48: llama.cpp 16634; 128: ollama 17367 and ds4 893. The logs have no Mac with 96 GB.
_HIGHER = {16: 11.84, 24: 17.76, 32: 24.96, 36: 28.08, 48: 37.44, 64: 51.84, 128: 107.52}


def limit_of(size: int) -> int:
    """Returns the least maximum that Metal recommends on Macs with this many GB of memory, in bytes.

    It is two thirds up to 32 GB, and three quarters from 36 GB on. Macs with macOS 14 have it (ollama pull request
    17367), and some with later ones: llama.cpp's logs show 10.67 GiB of 16 GB and 21.33 GiB of 32 GB with residency
    sets too, and 8 GB and 512 GB have it with macOS 15.
    """
    return round(size * GIB * (2 / 3 if size < 36 else 3 / 4))


def higher_limit_of(size: int) -> int | None:
    """Returns the maximum on Macs of this size that recommend more, in bytes; None if none was seen."""
    return round(_HIGHER[size] * GIB) if size in _HIGHER else None


def smallest_for(peak: int) -> int | None:
    """Returns the memory, in GB, of the smallest Mac that a step with this peak fits on; None if there is none."""
    return next((size for size in SIZES if peak <= limit_of(size)), None)
