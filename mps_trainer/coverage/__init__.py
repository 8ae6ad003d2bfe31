"""What of a training step would run on mps, for the installed torch, on any machine."""

from .coverage_report import BlockingRead, CoverageReport, DtypeProblem, OperatorUse
from .step import trace_step
from .table import OperatorTable, Support, operator_table
from .tracer import Tracer, trace

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
