"""Which operators of a training step have an MPS kernel, for the installed torch, on any machine."""

from .table import OperatorTable, Support, operator_table

__all__ = ["OperatorTable", "Support", "operator_table"]
