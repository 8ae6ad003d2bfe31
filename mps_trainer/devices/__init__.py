"""Chooses the device of a run from the facts of the machine, and gives the reasons."""

from __future__ import annotations

from .accelerators import ACCELERATORS, MPSAccelerator
from .facts import MachineFacts, gather_facts
from .resolver import Decision, DeviceRequest, resolve

__all__ = ["ACCELERATORS", "Decision", "DeviceRequest", "MPSAccelerator", "MachineFacts", "gather_facts", "resolve"]
