"""Checks on any machine which operators of a training step the installed torch runs on mps."""

from __future__ import annotations

from .coverage_report import BlockingRead, CoverageReport, DtypeProblem, OperatorUse, RefusedCall
from .step import trace_step
from .table import OperatorTable, Support, operator_table
from .tracer import Tracer, trace

__all__ = [
    "BlockingRead",
    "CoverageReport",
    "DtypeProblem",
    "OperatorTable",
    "OperatorUse",
    "RefusedCall",
    "Support",
    "Tracer",
    "operator_table",
    "trace",
    "trace_step",
]
