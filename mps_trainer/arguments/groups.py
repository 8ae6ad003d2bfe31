"""Combines all fields except the deprecated ones in one dataclass."""

from __future__ import annotations

from dataclasses import dataclass

from .checkpointing import CheckpointingArguments
from .data import DataArguments
from .device import DeviceArguments
from .evaluation import EvaluationArguments
from .hub import HubArguments
from .model import ModelArguments
from .optimization import OptimizationArguments
from .parallel import ParallelArguments
from .precision import PrecisionArguments
from .removed import RemovedArguments
from .reporting import ReportingArguments
from .run import RunArguments


@dataclass
class ArgumentGroups(
    RemovedArguments,
    DeviceArguments,
    ParallelArguments,
    HubArguments,
    ModelArguments,
    CheckpointingArguments,
    EvaluationArguments,
    ReportingArguments,
    DataArguments,
    PrecisionArguments,
    OptimizationArguments,
    RunArguments,  # the last base gives the first fields: output_dir may be passed by position
):
    """Every group of fields: add a new group here."""
