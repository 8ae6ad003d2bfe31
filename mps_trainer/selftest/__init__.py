"""Whether training works on this machine: a tiny model on the device and on the CPU, compared within a minute."""

from __future__ import annotations

from .checks import CHECKS
from .lab import Lab
from .results import CheckResult, SelftestReport
from .run import run_selftest

__all__ = ["CHECKS", "CheckResult", "Lab", "SelftestReport", "run_selftest"]
