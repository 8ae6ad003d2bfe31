"""Runs the checks one after another, whether or not one fails."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from ...arguments.model import LAUNCHED
from ...devices import DeviceRequest, gather_facts, resolve
from ...devices.facts import apple_chip, for_a_report
from ...devices.known_faults import faults_to_warn_of
from ...devices.watermarks import memory_limit
from ...errors import MisconfigurationException
from ...utils.text import sentence
from ...version import __version__
from ..quiet import quiet
from .faults import reproduced
from .lab import Lab
from .memory import given_back, limited
from .numbers import in_format
from .operators import blocking_read, fallback
from .results import FAILED, PASSED, SKIPPED, CheckFailed, CheckResult, CheckSkipped, SelftestReport
from .saving import resumed, resumed_on_the_device

if TYPE_CHECKING:
    from ..simulator import SimulatedMPS

# Returns what was measured, in words and as figures. Raises CheckFailed or CheckSkipped; any other error is a failure.
Check = Callable[[Lab], tuple[str, dict[str, Any]]]

CHECKS: dict[str, Check] = {  # in this order
    "losses as on the CPU": lambda lab: in_format(lab, "fp32"),
    "bf16": lambda lab: in_format(lab, "bf16"),
    "fp16": lambda lab: in_format(lab, "fp16"),
    "save and resume, CPU": lambda lab: resumed(lab, "cpu"),
    "save and resume, device": resumed_on_the_device,
    "memory limit": limited,
    "memory given back": given_back,
    "operator without kernel": fallback,
    "blocking read": blocking_read,
    "known faults": reproduced,
}


def run_selftest(
    simulated: SimulatedMPS | None = None,
    tell: Callable[[str], object] = lambda text: None,
    checks: Mapping[str, Check] = CHECKS,
) -> SelftestReport:
    """Checks the device that training would choose here.

    Args:
        simulated: the simulated mps device, if it is switched on.
        tell: is called with texts that make a line for each check: its name before it, and its result.

    Raises:
        MisconfigurationException: if nothing can be trained here, by the environment or the machine.
    """
    start = time.perf_counter()
    facts = gather_facts(memory_limit=memory_limit(None))
    decision = resolve(DeviceRequest(), facts)
    if decision.world_size > 1:
        raise MisconfigurationException(
            f"{decision.world_size} processes were started, and the selftest checks the device of one. Start it "
            "without a launcher."
        )
    try:
        folder = tempfile.TemporaryDirectory(prefix="mps-trainer-selftest-")
    except OSError as error:
        raise MisconfigurationException(
            f"There is no folder for temporary files to write checkpoints to: {error.strerror}. Set TMPDIR to one."
        ) from error
    results = []
    with folder as path, quiet(), mock.patch.dict(os.environ):
        os.environ.pop(LAUNCHED, None)  # each check says by itself what it autocasts to
        lab = Lab(decision, facts, Path(path), simulated)
        for number, (name, check) in enumerate(checks.items(), start=1):
            tell(f"[{number}/{len(checks)}] {name} ... ")
            results.append(result := run_check(name, check, lab))
            tell(f"{result.status}, {result.seconds:.1f} s\n")
    on_mac = decision.type == "mps" and facts.system == "Darwin"
    faults = faults_to_warn_of(facts.torch_version, facts.os_version, apple_chip()) if on_mac else ()
    reported = for_a_report(facts)
    return SelftestReport(
        device=decision.name,
        simulated=facts.mps_simulated and decision.type == "mps",
        versions={"python": facts.python_version, "mps_trainer": __version__, **reported.packages},
        decision=decision.to_dict(),
        facts=reported.to_dict(),
        known_faults=tuple(map(str, faults)),
        checks=tuple(results),
        seconds=round(time.perf_counter() - start, 2),
    )


def run_check(name: str, check: Check, lab: Lab) -> CheckResult:
    """Runs one check. An error that it raises is a failure in one line."""
    start = time.perf_counter()
    figures: dict = {}
    try:
        text, figures = check(lab)
        status = PASSED
    except CheckSkipped as skipped:
        status, text = SKIPPED, str(skipped)
    except CheckFailed as failed:
        status, text, figures = FAILED, str(failed), failed.figures
    except Exception as error:
        status, text = FAILED, f"{type(error).__name__}: {sentence(error)}"
    return CheckResult(name, status, text, round(time.perf_counter() - start, 2), figures)
