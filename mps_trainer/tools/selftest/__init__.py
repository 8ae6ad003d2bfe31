"""Tests within a minute whether training works here: a tiny model on the device is compared with the CPU."""

from __future__ import annotations

from .lab import Lab
from .results import CheckResult, SelftestReport
from .run import CHECKS, run_selftest

__all__ = ["CHECKS", "CheckResult", "Lab", "SelftestReport", "run_selftest"]
