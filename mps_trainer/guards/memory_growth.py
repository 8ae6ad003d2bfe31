"""Limits the memory of a run on mps, and releases torch's cache before the limit is reached."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ..devices.watermarks import HIGH, memory_limit
from ..utils.amounts import format_bytes
from .memory_table import live_and_driver

logger = logging.getLogger(__name__)

# Batches of ever new lengths leave buffers of ever new sizes behind (pytorch issues 77753, 132596). Up to this
# multiple of what tensors took at their most, what torch keeps for later is worth its memory.
_TIMES = 1.3
_WORTHWHILE = 1 / 16  # of the recommended maximum: smaller amounts do not matter


class MemoryGuard:
    """Sets the memory limit of a run on mps, and releases torch's cache when it outgrows the tensors.

    Args:
        device: an mps device.
        fraction: of the maximum that Metal recommends; past it an allocation fails. None for 1.0; 0 for no
            limit. PYTORCH_MPS_HIGH_WATERMARK_RATIO in the environment goes before it.
    """

    def __init__(self, device: torch.device, fraction: float | None = None) -> None:
        self.device = device
        self._left = 0  # bytes that could not be given back the last time
        self._set_limit(fraction)

    def _set_limit(self, fraction: float | None) -> None:
        recommended = torch.mps.recommended_max_memory()
        self._worthwhile = recommended * _WORTHWHILE
        if HIGH in os.environ:
            if fraction is not None:
                logger.warning(
                    "memory_fraction=%s has no effect: %s=%s is set and overrides it.",
                    *(fraction, HIGH, os.environ[HIGH]),
                )
            return
        fraction = float(memory_limit(fraction))
        torch.mps.set_per_process_memory_fraction(fraction)
        logger.info(
            "Memory guard: an allocation on mps fails past %s (memory_fraction=%s).",
            *(format_bytes(fraction * recommended) if fraction else "no limit", fraction),
        )

    def maybe_release(self) -> None:
        """Releases unused memory if there is too much. Call it now and then, not at each step."""
        live, held = live_and_driver(self.device)
        needed = max(_peak(live), self._left)
        too_much = max(_TIMES * needed, needed + self._worthwhile)
        if held <= too_much:
            return
        # graphs are dropped only if buffers are not enough, because the next steps compile them again
        for release in (release_buffers, free_unused):
            release(self.device)
            self._left = live_and_driver(self.device)[1]
            if self._left <= too_much:
                break
        logger.info(
            "Memory guard: mps held %s for %s of tensors; after giving back what is not used, %s.",
            *(format_bytes(size) for size in (held, live, self._left)),
        )


def release_buffers(device: torch.device) -> None:
    """Releases torch's cached buffers to the system. The graphs that mps has compiled stay."""
    try:
        if device.type != "cpu":
            torch.accelerator.empty_cache()
    except (AttributeError, RuntimeError):  # an older torch
        free_unused(device)


def free_unused(device: torch.device) -> None:
    """Releases memory without tensors to the system, on mps with all compiled graphs."""
    if callable(empty_cache := getattr(getattr(torch, device.type, None), "empty_cache", None)):
        empty_cache()


def _peak(live: int) -> int:
    """Returns the peak bytes in tensors, or `live` where an older torch does not report them."""
    try:
        return max(torch.accelerator.max_memory_allocated(), live)
    except (AttributeError, RuntimeError):
        return live


def make_guard(args: Any) -> MemoryGuard | None:
    """Returns the guard that `args` request, or None."""
    return MemoryGuard(args.device, args.memory_fraction) if args.memory_guard and args.device.type == "mps" else None
