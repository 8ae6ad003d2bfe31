"""Running the checks one after another, whatever becomes of each."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..arguments.precision import LAUNCHED
from ..devices import DeviceRequest, gather_facts, resolve
from ..devices.facts import apple_chip, for_a_report
from ..devices.known_faults import known_faults
from ..errors import MisconfigurationException
from ..guards.watermarks import memory_limit
from ..refusal import sentence
from ..version import __version__
from .checks import CHECKS, Check
from .lab import Lab
from .results import FAILED, PASSED, SKIPPED, CheckFailed, CheckResult, CheckSkipped, SelftestReport

if TYPE_CHECKING:
    from ..simulator import SimulatedMPS

LIBRARIES = ("torch", "transformers", "safetensors", "numpy", "psutil")

Tell = Callable[[str], object]


def run_selftest(
    simulated: SimulatedMPS | None = None,
    begins: Tell = lambda name: None,
    ends: Callable[[CheckResult], object] = lambda result: None,
    checks: Mapping[str, Check] = CHECKS,
) -> SelftestReport:
    """Checks the device that training would choose here.

    Args:
        simulated: the simulated mps device, if it is switched on.
        begins: is called with the name of a check before it.
        ends: is called with what became of it.

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
    results = []
    with _folder() as folder, _quiet(), _not_launched():
        lab = Lab(decision, facts, folder, simulated)
        for name, check in checks.items():
            begins(name)
            results.append(run_check(name, check, lab))
            ends(results[-1])
    on_mac = decision.type == "mps" and facts.system == "Darwin"
    faults = known_faults(facts.torch_version, facts.os_version, apple_chip()) if on_mac else ()
    return SelftestReport(
        device=decision.name,
        simulated=facts.mps_simulated and decision.type == "mps",
        versions=versions(facts.python_version),
        decision=decision.to_dict(),
        facts=for_a_report(facts).to_dict(),
        known_faults=tuple(map(str, faults)),
        checks=tuple(results),
        seconds=round(time.perf_counter() - start, 2),
    )


def run_check(name: str, check: Check, lab: Lab) -> CheckResult:
    """What became of one check; what it raises is a failure in one line."""
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


def versions(python: str) -> dict[str, str]:
    """Of Python, this package and the libraries that training depends on."""
    found = {"python": python, "mps_trainer": __version__}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="mps-trainer-selftest-")
    except OSError as error:
        raise MisconfigurationException(
            f"There is no folder for temporary files to write checkpoints to: {error.strerror}. Set TMPDIR to one."
        ) from error
    with folder as name:
        yield Path(name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside, libraries and the Trainer warn nobody: what is wrong shows in a check."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _not_launched() -> Iterator[None]:
    """Inside, no launcher asks for a number format: each check says by itself what it autocasts to."""
    asked = os.environ.pop(LAUNCHED, None)
    try:
        yield
    finally:
        if asked is not None:
            os.environ[LAUNCHED] = asked
