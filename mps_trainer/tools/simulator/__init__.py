"""Simulates an `mps` device that fails where a Mac fails and counts operations that cost time there.

Importing this package before torch takes CUDA out of the process where torch is built for it and there is no NVIDIA
GPU; see `hide_cuda`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ...utils.import_watch import is_watched
from .build import SimulatorUnavailableError
from .cuda import hide_cuda, hide_unused_cuda

if TYPE_CHECKING:
    from .callback import SimulationCallback, StepFigures
    from .session import SimulatedMPS, activate, simulated_mps
    from .simulation_report import OperatorCalls, Place, SimulationReport

__all__ = [
    "OperatorCalls",
    "Place",
    "SimulatedMPS",
    "SimulationCallback",
    "SimulationReport",
    "SimulatorUnavailableError",
    "StepFigures",
    "activate",
    "hide_cuda",
    "simulated_mps",
]

# Loaded on first use: torch must not be imported before CUDA is hidden, and transformers takes a second.
_EXPORTS = {
    **dict.fromkeys(("SimulationCallback", "StepFigures"), ".callback"),
    **dict.fromkeys(("SimulatedMPS", "activate", "simulated_mps"), ".session"),
    **dict.fromkeys(("OperatorCalls", "Place", "SimulationReport"), ".simulation_report"),
}

if not is_watched("torch"):  # else a command hides CUDA when its script imports torch
    hide_unused_cuda()


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name], __name__), name)
