"""Chooses the device of a run from the facts of the machine, and gives the reasons."""

from __future__ import annotations

from .accelerators import (
    ACCELERATORS,
    Accelerator,
    CPUAccelerator,
    CUDAAccelerator,
    MPSAccelerator,
    Obstacle,
    XPUAccelerator,
)
from .facts import MachineFacts, gather_facts
from .resolver import Decision, DeviceRequest, Rejected, resolve

__all__ = [
    "ACCELERATORS",
    "Accelerator",
    "CPUAccelerator",
    "CUDAAccelerator",
    "Decision",
    "DeviceRequest",
    "MPSAccelerator",
    "MachineFacts",
    "Obstacle",
    "Rejected",
    "XPUAccelerator",
    "gather_facts",
    "resolve",
]
