"""Measures the memory of the device from the sizes of the tensors there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..utils.amounts import format_bytes
from ..utils.nested import tensors_in


@dataclass(frozen=True)
class MemoryTable:
    """Holds the memory of one device at one moment, in bytes. None where the device does not report it."""

    device: str
    live: int | None = None  # in tensors
    driver: int | None = None  # that the system has given to this process, with what torch keeps for later
    recommended: int | None = None  # the most that Metal recommends; elsewhere all there is
    model: int = 0
    gradients: int = 0
    optimizer: int = 0

    @property
    def activations(self) -> int:
        """Returns the bytes of all other tensors: activations, and the batch."""
        return max((self.live or 0) - self.model - self.gradients - self.optimizer, 0)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "activations": self.activations}

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
    parameters = list(model.parameters()) if model is not None else []
    buffers = list(model.buffers()) if model is not None else []
    state = getattr(optimizer, "state", None)
    return MemoryTable(
        str(device),
        *_totals(device),
        model=_held([*parameters, *buffers], device),
        gradients=_held((p.grad for p in parameters if p.grad is not None), device),
        optimizer=_held(tensors_in(state), device),
    )


def live_and_driver(device: torch.device) -> tuple[int, int]:
    """Returns the bytes in tensors and the bytes that this process holds on an mps device."""
    return torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()


def _totals(device: torch.device) -> tuple[int | None, int | None, int | None]:
    if device.type == "mps":
        return *live_and_driver(device), torch.mps.recommended_max_memory()
    module: Any = getattr(torch, device.type, None)
    with contextlib.suppress(AttributeError, RuntimeError, AssertionError):
        total = module.get_device_properties(device).total_memory
        return module.memory_allocated(device), module.memory_reserved(device), total
    return None, None, None


def _held(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    """Returns the bytes of the memory behind `tensors` on `device`, each piece once."""
    pieces: dict[int, int] = {}
    for tensor in tensors:
        if tensor.device.type == device.type and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            pieces[storage.data_ptr()] = storage.nbytes()
    return sum(pieces.values())
