"""An `mps` device for machines that have none: what a Mac refuses fails here, and what costs time there is counted."""

from .build import SimulatorUnavailableError
from .callback import SimulationCallback, StepFigures
from .report import OperatorCalls, Place, SimulationReport
from .session import SimulatedMPS, activate, simulated_mps

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
