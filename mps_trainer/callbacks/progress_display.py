"""Shows progress with time left, samples/s and memory: as a bar on a terminal, elsewhere as a line at each tenth."""

from __future__ import annotations

import math
import time
from typing import Any

import psutil
import torch
from tqdm import tqdm

from ..guards.memory import measure
from ..utils.amounts import format_bytes

_NARROWEST = 6  # columns in which a bar still says something
_USUAL = 80  # columns of a terminal that does not tell how many it has
_EVERY = 0.5  # seconds between two looks at memory and clock; between them a step costs an addition
# Seconds between two lines: what goes by faster needs no line, and a log of many short evaluations stays readable.
SHORTEST = 1.0


class Bar(tqdm):
    """tqdm's bar with its rate in examples and the memory in use.

    Args:
        examples: in a unit of the bar, on average; a unit is a step or a batch.
        device: whose memory is shown.
        settings: tqdm's own; `total` and `desc` are needed.

    No colors: what is shown is the same under NO_COLOR.
    """

    def __init__(self, examples: float, device: torch.device, **settings: Any) -> None:
        self._examples, self._device, self._apart = examples, device, 0.0
        super().__init__(dynamic_ncols=True, mininterval=_EVERY, **settings)

    def leave_out(self, seconds: float) -> None:
        """Leaves the time of an evaluation or a save out of the rate, but not out of the time left.

        As much of it is expected for each unit to come as for those that are done.
        """
        self._apart += seconds
        if not self.disable:
            self.last_print_t += seconds  # from which tqdm measures

    @property
    def format_dict(self) -> dict[str, Any]:
        """tqdm's facts with this bar's layout, read when the bar is drawn and not at every step."""
        facts = super().format_dict
        if not hasattr(self, "unit"):  # one that tqdm was told to leave out
            return facts
        done, elapsed = facts["n"] - facts["initial"], facts["elapsed"]
        trained_for = elapsed - self._apart
        rate = facts["rate"] or (done / trained_for if done and trained_for > 0 else None)
        left = None
        if rate and facts["total"]:
            left = max(facts["total"] - facts["n"], 0) * (1 / rate + self._apart / max(done, 1))
        facts["ncols"] = facts["ncols"] or _USUAL
        facts["bar_format"] = layout(
            facts["prefix"].removesuffix(": "),
            (facts["n"], facts["total"]),
            elapsed,
            left,
            None if rate is None else rate * self._examples,
            memory_in_use(self._device),
            facts["ncols"],
        )
        return facts


def layout(
    name: str,
    position: tuple[int, int | None],
    elapsed: float,
    left: float | None,
    speed: float | None,
    memory: int | None,
    columns: int,
) -> str:
    """Returns the longest text that fits into `columns`, with `{bar}` in place of the bar.

    Args:
        position: units done, and all units, None if unknown.
        elapsed, left: seconds.
        speed: examples a second.
        memory: bytes.
    """
    done, total = position
    percent = "" if total is None else f"{100 * done / max(total, 1):3.0f}%"
    place = f"{done} batches" if total is None else f"{done}/{total}"
    clock = clocks(elapsed, left if total is not None else None)
    held = None if memory is None else format_bytes(memory)
    rate = None if speed is None else samples_per_second(speed)
    inside = ", ".join(part for part in (clock, rate, held) if part)
    choices = [
        *([] if total is None else [f"{name} {percent}|{{bar}}| {place} [{inside}]"]),
        " ".join(part for part in (name, percent, place, f"[{inside}]") if part),
        f"{percent} {place} [{clock}{f', {rate}' if rate else ''}]",
        f"{percent} {place} [{clock}]",
    ]
    for text in choices:
        width = len(text) + (_NARROWEST - len("{bar}") if "{bar}" in text else 0)
        if width <= columns:
            return text
    return f"{percent} {place}"


class Lines:
    """Stands in for a bar where there is no terminal: tells when a line is due, at each tenth of `total` units.

    Args:
        examples: in a unit, on average.
        initial: units that were done before.
    """

    def __init__(self, examples: float, total: int, initial: int = 0) -> None:
        self.total, self.n = total, initial
        self._examples, self._initial = examples, initial
        self._start = self._shown_at = time.perf_counter()
        self._apart = 0.0
        self._has_shown = False  # in this tenth
        self._next = self._end_of_tenth()

    def update(self, units: int = 1) -> None:
        self.n += units

    def is_due(self) -> bool:
        """Returns True if a line is due: once for each tenth in which there was none, at most once a second."""
        if self.n < self._next:
            return False
        self._next = self._end_of_tenth()
        has_shown, self._has_shown = self._has_shown, False
        now = time.perf_counter()
        if has_shown or now - self._shown_at < SHORTEST:
            return False
        self._shown_at = now
        return True

    def note_line(self) -> None:
        """Records that another line has shown the progress."""
        self._has_shown, self._shown_at = True, time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leaves the time of an evaluation or a save out of the rate, but not out of the time left."""
        self._apart += seconds

    def clocks(self) -> str:
        """Returns the time since the beginning, and the time left."""
        elapsed, done = time.perf_counter() - self._start, self.n - self._initial
        return clocks(elapsed, (self.total - self.n) * elapsed / done if done > 0 else None)

    def speed(self) -> str | None:
        """Returns examples per second since the beginning."""
        trained_for, done = time.perf_counter() - self._start - self._apart, self.n - self._initial
        return samples_per_second(done * self._examples / trained_for) if done > 0 and trained_for > 0 else None

    def write(self, line: str) -> None:
        print(line, flush=True)

    def refresh(self) -> None:
        """Does nothing: only a bar can be drawn again."""

    def close(self) -> None:
        """Does nothing: only a bar holds a line of the terminal."""

    def _end_of_tenth(self) -> int:
        """Returns the units at the end of the tenth of the next unit."""
        return math.ceil((self.n * 10 // max(self.total, 1) + 1) * self.total / 10)


def clocks(elapsed: float, left: float | None) -> str:
    """Returns 02:10<04:20: the time elapsed and the time left."""
    passed: str = tqdm.format_interval(elapsed)
    return passed if left is None else f"{passed}<{tqdm.format_interval(left)}"


def samples_per_second(speed: float) -> str:
    return f"{speed:,.0f} samples/s" if speed >= 100 else f"{speed:.1f} samples/s"


def memory_in_use(device: torch.device) -> int | None:
    """Returns the bytes of tensors on `device`, on the CPU those of the process; None if unknown.

    Does not wait for the device.
    """
    if device.type == "cpu":
        return psutil.Process().memory_info().rss
    return measure(device).live
