"""Defines one small class per kind of hardware, all with the same methods."""

from __future__ import annotations

from .base import Accelerator, Devices, Obstacle
from .cpu import CPUAccelerator
from .cuda import CUDAAccelerator
from .mps import MPSAccelerator
from .xpu import XPUAccelerator

# In the order in which accelerator="auto" tries them.
ACCELERATORS: dict[str, type[Accelerator]] = {
    kind.name(): kind for kind in (MPSAccelerator, CUDAAccelerator, XPUAccelerator, CPUAccelerator)
}

__all__ = [
    "ACCELERATORS",
    "Accelerator",
    "CPUAccelerator",
    "CUDAAccelerator",
    "Devices",
    "MPSAccelerator",
    "Obstacle",
    "XPUAccelerator",
]
