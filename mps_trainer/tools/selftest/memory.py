"""Checks that the memory limit holds and that the cache is given back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...devices import ACCELERATORS
from ...devices.watermarks import HIGH, memory_limit
from ...guards.memory import free_unused, measure
from ...guards.memory_errors import DeviceOutOfMemoryError
from ...utils.text import format_bytes
from .lab import Lab
from .results import CheckFailed, CheckSkipped

ROOM = 256 * 2**20  # bytes above what the process holds: plenty for the tiny model
PIECE, PIECES = 64 * 2**20, 4


class Greedy(nn.Module):
    """Asks for `size` bytes in each forward pass."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        asked = torch.empty(self.size, dtype=torch.uint8, device=input_ids.device)
        return {"loss": self.weight.sum() * asked.numel()}


def limited(lab: Lab) -> tuple[str, dict[str, Any]]:
    """Checks that an allocation past `memory_fraction` raises this package's error; no memory is really taken."""
    if lab.device.type != "mps":
        raise CheckSkipped(f"memory_guard limits memory on mps, and the device is {lab.device.type}")
    if (given := lab.facts.environment.get(HIGH)) is not None:
        raise CheckSkipped(f"{HIGH}={given} is set and overrides memory_fraction")
    recommended = torch.mps.recommended_max_memory()
    free_unused(lab.device)
    limit = torch.mps.driver_allocated_memory() + ROOM
    asked = limit + PIECE
    figures: dict[str, Any] = {"limit_bytes": limit, "asked_bytes": asked, "recommended_bytes": recommended}
    try:
        lab.train("mps", Greedy(asked), memory_fraction=limit / recommended, max_steps=1)
    except DeviceOutOfMemoryError as error:
        figures["error"] = str(error)
        text = f"{format_bytes(asked)} were refused at a limit of {format_bytes(limit)}: {type(error).__name__}"
        return text, figures
    finally:
        torch.mps.set_per_process_memory_fraction(memory_limit(None))
    raise CheckFailed(f"{format_bytes(asked)} were allocated despite a limit of {format_bytes(limit)}", **figures)


def given_back(lab: Lab) -> tuple[str, dict[str, Any]]:
    """Checks that torch releases the memory of deleted tensors to the system when the guard asks for it."""
    if ACCELERATORS[lab.device.type].torch_module() is None:
        raise CheckSkipped(f"torch has no memory cache on {lab.device.type}")
    free_unused(lab.device)
    before = _held(lab.device)
    tensors = [torch.empty(PIECE, dtype=torch.uint8, device=lab.device) for _ in range(PIECES)]
    with_tensors = _held(lab.device)
    del tensors
    kept = _held(lab.device)
    free_unused(lab.device)
    after = _held(lab.device)
    figures = {"before_bytes": before, "with_tensors_bytes": with_tensors, "kept_bytes": kept, "after_bytes": after}
    wanted = PIECE * PIECES
    if with_tensors - before < wanted:
        raise CheckFailed(
            f"the process holds {format_bytes(with_tensors - before)} more with {format_bytes(wanted)} of new tensors",
            **figures,
        )
    if after - before > wanted / 10:
        raise CheckFailed(
            f"{format_bytes(after - before)} of {format_bytes(wanted)} in deleted tensors are still held after "
            "emptying the cache",
            **figures,
        )
    text = f"the cache kept {format_bytes(kept - before)} of deleted tensors and released {format_bytes(kept - after)}"
    return text, figures


def _held(device: torch.device) -> int:
    getattr(torch, device.type).synchronize()  # a tensor is kept until the device has done with it
    return measure(device).driver or 0
