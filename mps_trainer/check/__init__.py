"""Checks on any machine which operators of a training step the installed torch runs on mps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .coverage_report import BlockingRead, CoverageReport, DtypeProblem, OperatorUse
from .table import OperatorTable, Support, operator_table
from .tracer import Tracer, trace

if TYPE_CHECKING:
    from .step import trace_step

__all__ = [
    "BlockingRead",
    "CoverageReport",
    "DtypeProblem",
    "OperatorTable",
    "OperatorUse",
    "Support",
    "Tracer",
    "operator_table",
    "trace",
    "trace_step",
]


def __getattr__(name: str) -> Any:
    if name != "trace_step":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .step import trace_step  # it imports transformers, which the simulated device does without

    return trace_step
