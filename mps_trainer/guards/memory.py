"""Measures and limits the memory of the device, and releases torch's cache before the limit is reached."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..devices import ACCELERATORS
from ..devices.watermarks import HIGH, memory_limit
from ..utils.nested import plain_tensors_in
from ..utils.text import format_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemoryTable:
    """Holds the memory of one device at one moment, in bytes. None where the device does not report it."""

    device: str
    live: int | None = None  # tensors take so much
    driver: int | None = None  # this process holds it, with torch's cache
    recommended: int | None = None  # the maximum that Metal recommends; elsewhere the device's memory
    model: int = 0
    gradients: int = 0
    optimizer: int = 0

    @property
    def activations(self) -> int:
        """Returns the bytes of all other tensors: activations, and the batch."""
        return max((self.live or 0) - self.model - self.gradients - self.optimizer, 0)

    def __str__(self) -> str:
        kinds = [("model", self.model), ("gradients", self.gradients), ("optimizer", self.optimizer)]
        if self.live is not None:
            kinds.append(("activations and batch", self.activations))
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in kinds)
        text = f"tensors {format_bytes(self.live)} ({parts})" if self.live is not None else parts
        if self.driver is not None:
            text += f", with torch's cache {format_bytes(self.driver)}"
        if self.recommended is not None:
            word = "recommended maximum" if self.device.startswith("mps") else "in all"
            text += f", {word} {format_bytes(self.recommended)}"
        return text


def measure(device: torch.device, model: Any = None, optimizer: Any = None) -> MemoryTable:
    """Returns the current memory use on `device` without blocking."""
    parameters = [p for p in model.parameters() if not is_lazy(p)] if model is not None else []
    buffers = [b for b in model.buffers() if not is_lazy(b)] if model is not None else []
    state = getattr(optimizer, "state", None)
    totals = ACCELERATORS[device.type].memory(device) if device.type in ACCELERATORS else {}
    live, driver, recommended = totals.values() or (None, None, None)
    return MemoryTable(
        str(device),
        live,
        driver,
        recommended,
        model=_held([*parameters, *buffers], device),
        gradients=_held([p.grad for p in parameters], device),
        optimizer=_held(state, device),
    )


def _held(value: Any, device: torch.device) -> int:
    """Returns the bytes of the memory behind the tensors in `value` on `device`, each piece once."""
    pieces: dict[int, int] = {}
    for tensor in plain_tensors_in(value):
        if tensor.device.type == device.type and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            pieces[storage.data_ptr()] = storage.nbytes()
    return sum(pieces.values())


# The limit on mps

# Batches of ever new lengths leave buffers of ever new sizes behind (pytorch issues 77753, 132596). Up to this
# multiple of the peak of the tensors, torch's cache is worth its memory.
_TIMES = 1.3
_WORTHWHILE = 1 / 16  # smaller shares of the recommended maximum do not matter


def limit_memory(device: torch.device, fraction: float | None = None) -> None:
    """Sets the memory limit of this process on mps, past which an allocation fails.

    Args:
        device: an mps device.
        fraction: fraction of the maximum that Metal recommends. None for 1.0; 0 for no limit.
            PYTORCH_MPS_HIGH_WATERMARK_RATIO in the environment overrides it.
    """
    if HIGH in os.environ:
        if fraction is not None:
            logger.warning(
                "memory_fraction=%s has no effect: %s=%s is set and overrides it.",
                *(fraction, HIGH, os.environ[HIGH]),
            )
        return
    fraction = float(memory_limit(fraction))
    torch.mps.set_per_process_memory_fraction(fraction)
    recommended = torch.mps.recommended_max_memory()
    logger.info(
        "Memory guard: an allocation on mps fails past %s (memory_fraction=%s).",
        *(format_bytes(fraction * recommended) if fraction else "no limit", fraction),
    )


class CacheGuard:
    """Releases torch's cache on mps when it outgrows the tensors.

    Args:
        device: an mps device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._left = 0  # bytes that could not be released the last time
        self._worthwhile = torch.mps.recommended_max_memory() * _WORTHWHILE

    def maybe_release(self) -> None:
        """Releases unused memory if there is too much. Call it now and then, not at each step."""
        live, held = torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
        try:
            peak = torch.accelerator.max_memory_allocated()
        except (AttributeError, RuntimeError):  # an older torch does not report it
            peak = live
        needed = max(peak, live, self._left)
        too_much = max(_TIMES * needed, needed + self._worthwhile)
        if held <= too_much:
            return
        # graphs are dropped only if buffers are not enough, because the next steps compile them again
        for release in (release_buffers, free_unused):
            release(self.device)
            self._left = torch.mps.driver_allocated_memory()
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
    ACCELERATORS[device.type].teardown()
