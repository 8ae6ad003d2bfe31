"""Knows which attention torch computes on mps in one kernel that keeps no scores.

It has no backward pass. Apple builds of torch 2.14.1 and 2.15.0 have the kernel for the same sizes of heads; others go
through a graph that makes the scores of all pairs of tokens. The kernel for 16 bits computed wrong on macOS 26 until
August 2026 (pytorch pull request 191794), so that torch before 2.15 is left out here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from . import probes
from .facts import parse_version

if TYPE_CHECKING:
    import torch

FIRST_TORCH = (2, 15)
HEAD_SIZES = frozenset((32, 64, 72, 80, 96, 128, 256))
FEWEST_QUERIES = 9  # fewer go to other kernels
FORMATS = frozenset(("float32", "float16", "bfloat16"))


def is_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Returns True if torch attends in one kernel where no gradient is needed, without dropout.

    Args:
        query, key, value: of batch x heads x tokens x size. All keys, or all up to a query's own, are seen.
    """
    size = query.shape[-1]
    return (
        query.device.type == "mps"
        and str(query.dtype).removeprefix("torch.") in FORMATS
        and key.dtype == value.dtype == query.dtype
        and size == value.shape[-1]
        and size in HEAD_SIZES
        and query.shape[-2] >= FEWEST_QUERIES
        and _has_kernel()
    )


@cache
def _has_kernel() -> bool:
    import torch

    return parse_version(torch.__version__) >= FIRST_TORCH and not probes.fused_attention_is_off()
