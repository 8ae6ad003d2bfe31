"""Decides whether the machine was quiet enough for a comparison of times. `loop/drift.py` reads its state."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from ...devices.probes import low_power_mode, system
from ...loop.drift import CRITICAL, THERMAL, WARNING, HostState, read_host_state
from ...utils.text import format_bytes

_SWAPPED = 1 << 30  # bytes; a Mac always swaps a little


@dataclass(frozen=True)
class Conditions:
    """Describes the machine before and after the measurement.

    Attributes:
        saves_power: True in macOS's Low Power Mode; None where the system does not tell.
        others: the mean number of cores that other programs used meanwhile; None where the system does not tell.
    """

    before: HostState = field(default_factory=HostState)
    after: HostState = field(default_factory=HostState)
    saves_power: bool | None = None
    others: float | None = None


def unjudgeable(conditions: Conditions, simulated: bool) -> list[str]:
    """Returns a clause for each reason not to compare times that were measured under these conditions."""
    before, after, found = conditions.before, conditions.after, []
    if simulated:
        found.append("the device is simulated on the CPU, whose times say nothing about a Mac")
    if level := max(before.thermal or 0, after.thermal or 0):
        name = THERMAL[min(level, len(THERMAL) - 1)]
        found.append(f"the machine is hot: thermal pressure is {name}, at which macOS slows the chip down")
    if conditions.saves_power:
        found.append("Low Power Mode is on, in which macOS slows the chip down")
    if (pressure := max(before.pressure or 0, after.pressure or 0)) >= WARNING:
        found.append(f"memory pressure is {'critical' if pressure >= CRITICAL else 'high'}")
    if before.swap is not None and after.swap is not None and after.swap - before.swap >= _SWAPPED:
        found.append(f"{format_bytes(after.swap - before.swap)} were swapped out meanwhile")
    if before.load is not None and before.load > max(1.5, before.cores / 2):
        found.append(f"the machine was busy before: its load was {before.load:.1f} on {before.cores} cores")
    if conditions.others is not None and conditions.others > max(0.5, before.cores / 4):
        found.append(f"other programs used {conditions.others:.1f} of {before.cores} cores meanwhile")
    return found


class ConditionsWatch:
    """Reads the state of the machine when it is made and at `end`, and the processor time of other programs between.

    The load counts at the beginning only: later, this process makes it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._before = clock, read_host_state()
        self._begun, self._busy = clock(), _busy_seconds()

    def end(self) -> Conditions:
        busy, others = _busy_seconds(), None
        if busy is not None and self._busy is not None:
            others = max(busy - self._busy, 0.0) / max(self._clock() - self._begun, 1e-6)
        saves_power = low_power_mode() if system() == "Darwin" else None
        return Conditions(self._before, read_host_state(), saves_power, others)


def _busy_seconds() -> float | None:
    """Returns the time that all processors have worked for other processes; None where the system does not tell."""
    with contextlib.suppress(Exception):  # a sandbox may forbid it
        of_all, own = psutil.cpu_times(), psutil.Process().cpu_times()
        mine = own.user + own.system + own.children_user + own.children_system
        return of_all.user + of_all.system + getattr(of_all, "nice", 0.0) - mine
    return None
