"""Computes how much memory a training step needs on a Mac, from the shapes of its tensors."""

from .estimate import estimate
from .fit_report import FitReport, RemedyResult

__all__ = ["FitReport", "RemedyResult", "estimate"]
