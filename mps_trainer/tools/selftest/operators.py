"""Checks single operators: one that mps lacks, and one that makes the host wait."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ...devices.facts import FALLBACK
from ..check.table import Support, operator_table
from .lab import Lab
from .results import CheckFailed, CheckSkipped

# Operators of one tensor that torch 2.13 has no MPS kernel for; the table of the installed one decides.
CANDIDATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "aten::special_airy_ai.out": torch.special.airy_ai,
    "aten::special_ndtri.out": torch.special.ndtri,
    "aten::mode": lambda numbers: torch.mode(numbers).values,
}
READS = 50


def fallback(lab: Lab) -> tuple[str, dict[str, Any]]:
    """Checks that an operator without an MPS kernel runs on the CPU with the switch and raises without it."""
    if lab.device.type != "mps":
        raise CheckSkipped(f"{FALLBACK} is for mps, and the device is {lab.device.type}")
    table = operator_table()
    name = next((name for name in CANDIDATES if table.support(name) is Support.FAILS), None)
    if name is None:
        raise CheckSkipped(f"torch {torch.__version__} has an MPS kernel for each of {', '.join(CANDIDATES)}")
    numbers = torch.linspace(0.1, 0.9, 8)
    figures = {"operator": name, "fallback": lab.fallback}
    try:
        found = CANDIDATES[name](numbers.to(lab.device)).cpu()
    except NotImplementedError as error:
        if lab.fallback:
            raise CheckFailed(f"{FALLBACK} was on when torch was loaded, and {name} raised", **figures) from error
        return f"{name} raises NotImplementedError: {FALLBACK} is off (--fallback switches it on)", figures
    if not lab.fallback:
        raise CheckFailed(f"{name} ran without {FALLBACK}, though torch's table has no MPS kernel for it", **figures)
    expected = CANDIDATES[name](numbers)
    # the CPU's kernel on the CPU's copy: the same bits
    if not torch.equal(found, expected):
        raise CheckFailed(f"{name} ran on the CPU with {FALLBACK}, and its results differ", **figures)
    return f"{name} runs on the CPU: {FALLBACK} is on", figures


def blocking_read(lab: Lab) -> tuple[str, dict[str, Any]]:
    """Measures the time to read a number from the device; training reads once for each log."""
    if lab.device.type == "cpu":
        raise CheckSkipped("reading a value on the CPU needs no wait")
    number = torch.zeros((), device=lab.device)
    times = []
    for _ in range(READS):
        number = number + 1
        begin = time.perf_counter()
        number.item()
        times.append(time.perf_counter() - begin)
    milliseconds = 1000 * statistics.median(times[READS // 10 :])  # the first ones compile
    figures: dict[str, Any] = {"milliseconds": milliseconds, "reads": READS}
    text = f"{milliseconds:.3f} ms to read one number (median of {READS})"
    if lab.simulated is None:
        return text, figures
    from ..simulator import SimulationCallback

    recorded = SimulationCallback(lab.simulated)
    lab.train(lab.device.type, max_steps=12, logging_steps=12, callbacks=[recorded])
    between = sum(step.blocking_reads for step in recorded.steps[1:-1])
    figures["reads_between_logs"] = between
    if between:
        raise CheckFailed(f"the steps between two logs read {between} values from the device", **figures)
    return f"{text}; the steps between two logs read none", figures
