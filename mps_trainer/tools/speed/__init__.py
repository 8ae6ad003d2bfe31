"""Measures the speed of training on this machine: workloads of real sizes, each also with transformers' Trainer."""

from __future__ import annotations

from .results import Measured, SpeedReport, WorkloadResult
from .run import run_speed
from .workloads import WORKLOADS, Plan

__all__ = ["WORKLOADS", "Measured", "Plan", "SpeedReport", "WorkloadResult", "run_speed"]
