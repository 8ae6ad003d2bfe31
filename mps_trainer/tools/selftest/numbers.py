"""Compares losses with the CPU's, in three formats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ...devices import ACCELERATORS
from .lab import Lab, losses
from .results import CheckFailed, CheckSkipped


@dataclass(frozen=True)
class Tolerance:
    """The largest relative difference to the CPU's float32 losses that passes, and the reason for it."""

    relative: float
    reason: str


# Measured with the tiny model on the CPU, in 20 steps. Wrong gradients show at 1e-2 and more: a LayerNorm's that are
# off by 1%, those of one bias with the wrong sign, those of one projection lost.
TOLERANCES = {
    "fp32": Tolerance(
        2e-4,
        "other orders of summation change float32 losses by 1e-6; gradients that are 1% off change them by 1e-2",
    ),
    # autocast's list of operators is not the same on every device, hence five to ten times what the CPU's came to
    "bf16": Tolerance(5e-2, "8 bits of mantissa changed the losses by 1.1e-2 on the CPU"),
    "fp16": Tolerance(1e-2, "11 bits of mantissa changed the losses by 1e-3 on the CPU"),
}
EXACT = Tolerance(0.0, "the same operations in the same order")


def in_format(lab: Lab, name: str) -> tuple[str, dict[str, Any]]:
    """Compares the losses in a format step by step with the CPU's in float32; on the CPU itself, bit for bit."""
    kind = lab.device.type
    if name not in ACCELERATORS[kind].precisions(lab.facts):
        old = kind == "mps" and name == "bf16"
        raise CheckSkipped("bfloat16 on mps came with macOS 14" if old else f"{kind} does not compute in {name}")
    if name == "fp16" and not ACCELERATORS[kind].scales_gradients(torch.__version__):
        raise CheckSkipped("the gradient scaler for mps came with torch 2.8")
    tolerance = EXACT if (name, kind) == ("fp32", "cpu") else TOLERANCES[name]
    settings: dict[str, Any] = {} if name == "fp32" else {name: True}
    return judge(lab.cpu_losses, losses(lab.train(kind, **settings)), tolerance)


def judge(expected: list[float], found: list[float], tolerance: Tolerance) -> tuple[str, dict[str, Any]]:
    """Returns how two runs compare. Raises CheckFailed when the losses that were `found` differ too much."""
    figures: dict[str, Any] = {
        "losses": found,
        "cpu_losses": expected,
        "tolerance": tolerance.relative,
        "tolerance_reason": tolerance.reason,
    }
    if len(found) != len(expected):
        raise CheckFailed(f"{len(found)} of {len(expected)} steps were logged", **figures)
    for step, loss in enumerate(found, start=1):
        if not math.isfinite(loss):
            raise CheckFailed(f"the loss is {loss} at step {step}, and {expected[step - 1]:.4f} on the CPU", **figures)
    differences = [abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True)]
    figures["largest_difference"] = largest = max(differences)
    figures["first_step_beyond"] = beyond = next(
        (step for step, value in enumerate(differences, start=1) if value > tolerance.relative), None
    )
    if beyond is not None:
        raise CheckFailed(
            f"the loss of step {beyond} is {found[beyond - 1]:.6f}, and {expected[beyond - 1]:.6f} on the CPU: a "
            f"difference of {differences[beyond - 1]:.1e}, and {tolerance.relative:.0e} is allowed "
            f"({tolerance.reason}); the largest is {largest:.1e}",
            **figures,
        )
    first, last = sum(found[:5]) / 5, sum(found[-5:]) / 5
    if last >= first:
        raise CheckFailed(f"the model did not learn: the loss goes from {first:.3f} to {last:.3f}", **figures)
    compared = f"largest difference {largest:.1e} of {tolerance.relative:.0e} allowed"
    if not tolerance.relative:
        compared = "the same losses twice, bit for bit"
    return f"{compared}, in {len(found)} steps; loss {first:.3f} to {last:.3f}", figures
