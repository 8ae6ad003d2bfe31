"""What is checked, in this order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .faults import reproduced
from .lab import Lab
from .memory import given_back, limited
from .numbers import as_on_the_cpu, in_bf16, in_fp16
from .operators import blocking_read, fallback
from .saving import resumed_on_the_cpu, resumed_on_the_device

# Gives what was measured, in words and as figures. Raises CheckFailed or CheckSkipped; anything else is a failure too.
Check = Callable[[Lab], tuple[str, dict[str, Any]]]

CHECKS: dict[str, Check] = {
    "losses as on the CPU": as_on_the_cpu,
    "bf16": in_bf16,
    "fp16": in_fp16,
    "save and resume, CPU": resumed_on_the_cpu,
    "save and resume, device": resumed_on_the_device,
    "memory limit": limited,
    "memory given back": given_back,
    "operator without kernel": fallback,
    "blocking read": blocking_read,
    "known faults": reproduced,
}
