"""Chooses the device of a run: facts of the machine in, a decision with its reasons out."""

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
