"""Measures the workloads one after another, each in rounds in which both sides run."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from ...arguments.model import LAUNCHED
from ...devices import Decision, DeviceRequest, gather_facts, resolve
from ...devices.facts import for_a_report
from ...devices.watermarks import memory_limit
from ...errors import MisconfigurationException
from ...guards.memory_errors import out_of_memory
from ...utils.installation import how_to_install
from ...utils.text import as_line, first_line
from ...version import __version__
from ..quiet import quiet
from .conditions import ConditionsWatch, unjudgeable
from .results import OURS, Measured, SpeedReport, WorkloadResult, duration
from .training import TRANSFORMERS, Measurement, synchronize
from .workloads import WORKLOADS, Operation, Plan, Workload

Tell = Callable[[str], object]
Side = Callable[[], tuple[float, int | None]]  # a run: the time of a step or a call, and the peak of memory

_PACKAGES = ("torch", "transformers", "accelerate", "peft")  # of which the report names the versions


def run_speed(
    plan: Plan,
    tell: Tell = lambda text: None,
    workloads: Sequence[Workload] = WORKLOADS,
) -> SpeedReport:
    """Measures the workloads on the device that training would choose here.

    Args:
        tell: is called with texts that make a line for each workload, with its times and an estimate of the rest.

    Raises:
        MisconfigurationException: if nothing can be trained here, by the environment or the machine.
    """
    start = time.perf_counter()
    facts = gather_facts(memory_limit=memory_limit(None))
    decision = resolve(DeviceRequest(), facts)
    if decision.world_size > 1:
        raise MisconfigurationException(
            f"{decision.world_size} processes were started, and the speed of one is measured. Start it without a "
            "launcher."
        )
    is_simulated = facts.mps_simulated and decision.type == "mps"
    is_real = not plan.quick or (decision.type != "cpu" and not is_simulated)
    chosen = [each for each in workloads if each.in_quick or not plan.quick]
    try:
        folder = tempfile.TemporaryDirectory(prefix="mps-trainer-speed-")
    except OSError as error:
        raise MisconfigurationException(
            f"There is no folder for temporary files: {error.strerror}. Set TMPDIR to one."
        ) from error
    tell(f"This takes about {'a minute' if plan.quick else 'five minutes on a Mac, and longer on a CPU'}.\n")
    watch, results = ConditionsWatch(), []
    with folder as path, quiet(), mock.patch.dict(os.environ):
        os.environ.pop(LAUNCHED, None)  # each workload has its number format
        rest = TimeLeft(chosen)
        for number, workload in enumerate(chosen, start=1):
            tell(f"[{number}/{len(chosen)}] {workload.name} ...")
            result = _measure(workload, is_real, plan, decision, Path(path), tell)
            results.append(replace(result, published=None) if is_simulated else result)
            tell(f"{rest.after(workload)}\n")
    reported = for_a_report(facts)
    versions = {name: reported.packages[name] for name in _PACKAGES if name in reported.packages}
    return SpeedReport(
        device=decision.name,
        simulated=is_simulated,
        quick=plan.quick,
        smaller=not is_real,
        date=datetime.date.today().isoformat(),
        versions={OURS: __version__, "python": reported.python_version, **versions},
        facts=reported.to_dict(),
        unjudged=tuple(unjudgeable(watch.end(), is_simulated)),
        workloads=tuple(results),
        seconds=round(time.perf_counter() - start, 2),
    )


class TimeLeft:
    """Estimates the time that the rest takes, from the time of what is done and the share that each workload has."""

    def __init__(self, workloads: Sequence[Workload], clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._begun = clock, clock()
        self._left = sum(map(_share, workloads))
        self._done = 0.0

    def after(self, workload: Workload) -> str:
        """Returns a clause with the time left when `workload` has ended; "" at the end."""
        self._done += _share(workload)
        self._left -= _share(workload)
        if self._left <= 0:
            return ""
        seconds = (self._clock() - self._begun) * self._left / self._done
        return f" (about {duration(max(round(seconds), 1))} left)"


def _share(workload: Workload) -> float:
    """Returns the time that a workload takes, relative to the others: operations take little."""
    return 10.0 if workload.is_training else 1.0


def _measure(
    workload: Workload, is_real: bool, plan: Plan, decision: Decision, folder: Path, tell: Tell
) -> WorkloadResult:
    is_real = is_real or not workload.smaller  # an operator has one size
    known: dict[str, Any] = {
        "name": workload.name,
        "sizes": workload.sizes if is_real else workload.smaller,
        "is_training": workload.is_training,
        "other": TRANSFORMERS if workload.is_training else "torch",
        "published": workload.published if is_real else None,
    }
    if workload.package is not None and importlib.util.find_spec(workload.package) is None:
        why = f"{workload.package} is not installed. {how_to_install(workload.package)}"
        tell(" skipped")
        return WorkloadResult(**known, ours=None, theirs=Measured(), skipped=why)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if workload.is_training:
            return _measure_training(workload, is_real, plan, decision, folder, tell, known)
        return _measure_operation(workload, is_real, plan, decision.device, tell, known)


def _measure_training(
    workload: Workload,
    is_real: bool,
    plan: Plan,
    decision: Decision,
    folder: Path,
    tell: Tell,
    known: dict[str, Any],
) -> WorkloadResult:
    try:
        measurement = Measurement(workload.make(is_real), decision, folder, plan.seconds)
    except Exception as error:  # such as for a lack of memory
        failure = _failure(error)
        return WorkloadResult(**known, ours=failure, theirs=failure)
    estimated = None
    try:
        estimated = measurement.estimated_bytes()
    except Exception as error:  # a step without values may fail where a real one does not
        tell(f" (fit failed with {type(error).__name__}: {first_line(error)})")
    sides = {name: functools.partial(measurement.measure, name) for name in (OURS, TRANSFORMERS)}
    measured = alternate(sides, plan, tell)
    return WorkloadResult(**known, ours=measured[OURS], theirs=measured[TRANSFORMERS], estimated_bytes=estimated)


def _measure_operation(
    workload: Workload, is_real: bool, plan: Plan, device: torch.device, tell: Tell, known: dict[str, Any]
) -> WorkloadResult:
    made: Operation | None = None

    def run(name: str) -> tuple[float, None]:
        nonlocal made
        made = made or workload.make(is_real, device)
        call = made.torch if name == "torch" else made.ours
        assert call is not None
        return seconds_of(call, device, plan.seconds / 2) / made.calls, None

    names = ["torch"] if not workload.has_own else [OURS, "torch"]
    measured = alternate({name: functools.partial(run, name) for name in names}, plan, tell)
    return WorkloadResult(**known, ours=measured.get(OURS), theirs=measured["torch"])


def seconds_of(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Returns the mean time of a call, of as many as fit into `seconds` after a first one; of at least one."""
    call()
    synchronize(device)
    begun, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - begun < seconds:
        call()
        synchronize(device)
        calls += 1
    return (time.perf_counter() - begun) / calls


def alternate(
    sides: Mapping[str, Side],
    plan: Plan,
    tell: Tell = lambda text: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Measured]:
    """Returns the times of each side over the rounds. The sides take turns in going first.

    A side that fails takes no part in later rounds, and the rounds end when they have used up their time.
    """
    begun, names = clock(), list(sides)
    times: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[str, int] = {}
    failed: dict[str, Measured] = {}
    for number in range(plan.rounds):
        if number >= 2 and clock() - begun > plan.budget:
            break
        for name in names if number % 2 == 0 else reversed(names):
            if name in failed:
                continue
            try:
                seconds, peak = sides[name]()
            except Exception as error:  # of a device, a kernel or a Trainer: the other side still counts
                failed[name] = _failure(error)
                tell(f" {name} failed")
                continue
            times[name].append(seconds)
            if peak is not None:
                peaks[name] = max(peak, peaks.get(name, 0))
            tell(f" {name} {duration(seconds)}" if number == 0 else ".")
    return {name: failed.get(name) or Measured(tuple(times[name]), peaks.get(name)) for name in names}


def _failure(error: Exception) -> Measured:
    is_memory = out_of_memory(error)
    text = as_line(first_line(error), 300).rstrip(".")
    return Measured(failure=f"{type(error).__name__}: {text}", out_of_memory=is_memory)
