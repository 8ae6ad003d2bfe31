"""Finds steps that became slow in the course of a run, and what the machine says about the cause.

Time is taken at logs, where the device is read anyway: nothing waits for it, and nothing runs on it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from ..callbacks.events import Events
from ..devices.probes import sysctl_int
from ..utils.nested import shape_of, tensors_in
from ..utils.text import format_bytes

logger = logging.getLogger(__name__)

_SLOW = 1.5  # times the time of the best stretch; throttled chips take 1.2 to 2.9 times as long
_STRETCH = 5.0  # seconds of training in a stretch at least; the mean of fewer is noise
_LASTS = 60.0  # seconds and stretches until slow steps are reported: one program that opens is soon done
_STRETCHES = 2
_SWAPPED = 1 << 30  # bytes; a Mac always swaps a little

THERMAL = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # macOS's levels of thermal pressure, from 0
_THERMAL_NAME = "com.apple.system.thermalpressurelevel"
NORMAL, WARNING, CRITICAL = 1, 2, 4  # macOS's levels of memory pressure


@dataclass(frozen=True)
class HostState:
    """Holds what may slow a machine down, at one moment. None where the system does not tell."""

    thermal: int | None = None  # macOS's thermal pressure, an index of THERMAL
    pressure: int | None = None  # macOS's memory pressure: NORMAL, WARNING or CRITICAL
    swap: int | None = None  # bytes that are swapped out
    load: float | None = None  # the average number of threads that ran or were ready in the last minute
    cores: int = 1


@dataclass(frozen=True)
class Stretch:
    """Describes the mean step of several in a row."""

    seconds: float
    work: tuple[float, ...]  # 1, then its batches, their elements, and the elements times those of one example


def expected_seconds(work: Sequence[float], best: Sequence[Stretch]) -> float:
    """Returns the longest time that a step of this work should take after `best`; infinity if `best` is empty.

    The time of a step is a sum of four times, each of which grows with one entry of `work`: the optimizer, launching
    batches, layers and attention. The sum grows by no larger factor than the one that grows most.
    """
    ratios = (max(map(operator.truediv, work, each.work)) * each.seconds for each in best)
    return min(ratios, default=math.inf)


def causes(before: HostState, now: HostState) -> list[str]:
    """Returns a clause for each known cause of slow steps, with its remedy. `before` is the state at the best ones."""
    found = []
    smaller = "use smaller batches (per_device_train_batch_size), or close other programs"
    if now.thermal:
        level = THERMAL[min(now.thermal, len(THERMAL) - 1)]
        found.append(f"thermal pressure is {level}, and macOS slows the chip down: let more air reach the Mac")
    if now.swap is not None and before.swap is not None and now.swap - before.swap >= _SWAPPED:
        found.append(f"{format_bytes(now.swap - before.swap)} more are swapped out: {smaller}")
    if now.pressure is not None and now.pressure >= WARNING:
        level = "critical" if now.pressure >= CRITICAL else "high"
        found.append(f"memory pressure is {level}: {smaller}")
    if now.load is not None and now.load > max(now.cores, _SLOW * (before.load or 0.0)):
        found.append(f"the load is {now.load:.1f} on {now.cores} cores: close other programs")
    return found


def read_host_state() -> HostState:
    """Returns the state of this machine. On macOS it takes about 10 ms."""
    is_mac, swap, load = sys.platform == "darwin", None, None
    with contextlib.suppress(Exception):  # a sandbox may forbid it, which must not end a run
        swap, load = psutil.swap_memory().used, psutil.getloadavg()[0]
    return HostState(
        thermal=_thermal_pressure() if is_mac else None,
        pressure=sysctl_int("kern.memorystatus_vm_pressure_level") if is_mac else None,
        swap=swap,
        load=load,
        cores=psutil.cpu_count() or 1,
    )


def _thermal_pressure() -> int | None:
    """Asks macOS's notification service, as ProcessInfo's thermalState does not tell moderate from heavy pressure."""
    try:
        words = subprocess.run(
            ["notifyutil", "-g", _THERMAL_NAME], capture_output=True, text=True, timeout=5, check=True
        ).stdout.split()
        return int(words[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


class DriftWatch:
    """Warns once if the steps of a run become slow and stay so.

    Time between `end` and `begin` does not count: logs, evaluations and saves. A part of the run with shapes that are
    new does not count either, because they are compiled in it.

    Args:
        events: gets a note when steps are slow, and one when they are as fast as before.
    """

    def __init__(
        self,
        events: Events,
        clock: Callable[[], float] = time.perf_counter,
        read_state: Callable[[], HostState] = read_host_state,
    ) -> None:
        self.events, self.clock, self.read_state = events, clock, read_state
        self.best: list[Stretch] = []
        self._state = HostState()  # at the newest of `best`
        self._works: dict[Any, tuple[int, int, int]] = {}  # by the shapes of a batch that was seen
        self._begun: float | None = None  # None: not in a part that counts
        self._first_step = 0
        self._part, self._stretch = [0.0] * 3, [0.0] * 5  # batches, elements, squares; before them seconds and steps
        self._slow: list[tuple[int, float, float]] = []  # steps, seconds, and seconds that they should have taken
        self._slow_since, self._slow_begun = 0, 0.0
        self._is_reported = self._is_over = False

    def begin(self, step: int) -> None:
        """Begins a part after `step`."""
        self._begun, self._first_step, self._part = self.clock(), step, [0.0] * 3

    def add(self, batch: Any) -> None:
        """Adds a batch to the part. Looks at its shapes alone."""
        shapes = tuple([shape_of(tensor) for tensor in tensors_in(batch)])
        work = self._works.get(shapes)
        if work is not None:
            self._part = list(map(operator.add, self._part, work))
            return
        self._begun = None
        if shapes:
            largest = max(shapes, key=math.prod)
            elements = math.prod(largest)
            self._works[shapes] = 1, elements, elements * math.prod(largest[1:])

    def end(self, step: int) -> None:
        """Ends the part at `step`, when the device has nothing left to do, and warns if steps have become slow."""
        begun, self._begun, now = self._begun, None, self.clock()
        if begun is None or step <= self._first_step:
            return
        part = (now - begun, step - self._first_step, *self._part)
        self._stretch = list(map(operator.add, self._stretch, part))
        seconds, steps, *work = self._stretch
        if seconds >= _STRETCH:
            self._stretch = [0.0] * 5
            mean = Stretch(seconds / steps, (1.0, *(max(amount / steps, 1.0) for amount in work)))
            self._judge(mean, step, int(steps))

    def _judge(self, stretch: Stretch, step: int, steps: int) -> None:
        expected, seconds = expected_seconds(stretch.work, self.best), stretch.seconds * steps
        if stretch.seconds <= _SLOW * expected:
            self._slow.clear()
            if stretch.seconds < expected:
                self.best.append(stretch)
                self._state = self.read_state()
            if self._is_reported and not self._is_over:
                self._is_over = True
                self.events.note("steady", "Steps take about as long as before.")
        elif not self._is_reported:
            if not self._slow:
                self._slow_since, self._slow_begun = step - steps, self.clock() - seconds
            self._slow.append((steps, seconds, expected * steps))
            if len(self._slow) >= _STRETCHES and sum(each[1] for each in self._slow) >= _LASTS:
                self._warn()

    def _warn(self) -> None:
        self._is_reported = True
        steps, seconds, expected = (sum(each) for each in zip(*self._slow, strict=True))
        text = (
            f"Steps have become slow: since step {self._slow_since:,} they take {seconds / steps:.2g} s on average, "
            f"{seconds / expected:.1f} times as long as steps of these shapes took before. "
        )
        state = self.read_state()
        found = causes(self._state, state)
        mac = "" if state.thermal is None else "thermal pressure, memory pressure, "
        text += " ".join(f"{each[0].upper()}{each[1:]}." for each in found) or (
            f"No cause is known: {mac}swap and load are normal. If the script does no more in a step than before, "
            "look for another program that uses the GPU or the disk."
        )
        logger.warning(text)
        self.events.note("slow", text, took=self.clock() - self._slow_begun)
