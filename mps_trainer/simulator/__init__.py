"""An `mps` device for machines that have none: what a Mac refuses fails here, and what costs time there is counted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .build import SimulatorUnavailableError
from .report import OperatorCalls, Place, SimulationReport
from .session import SimulatedMPS, activate, simulated_mps

if TYPE_CHECKING:
    from .callback import SimulationCallback, StepFigures

__all__ = [
    "OperatorCalls",
    "Place",
    "SimulatedMPS",
    "SimulationCallback",
    "SimulationReport",
    "SimulatorUnavailableError",
    "StepFigures",
    "activate",
    "simulated_mps",
]


def __getattr__(name: str) -> Any:
    if name in ("SimulationCallback", "StepFigures"):  # on first use: transformers takes a second to import
        return getattr(importlib.import_module(".callback", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
