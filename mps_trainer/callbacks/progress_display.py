"""Shows progress with time left, samples/s and memory: as a bar on a terminal, elsewhere as a line at each tenth."""

from __future__ import annotations

import io
import math
from typing import Any

import psutil
import torch
from tqdm import tqdm

from ..guards.memory import measure
from ..utils.text import format_bytes

_EVERY = 0.5  # seconds between two looks at memory and clock; between them a step costs an addition
# Seconds between two lines: what goes by faster needs no line, and a log of many short evaluations stays readable.
SHORTEST = 1.0


class Display:
    """Marks a callback with bars that an error or an interrupt has to end."""

    def close(self) -> None:
        """Ends all bars."""

    def end_evaluation(self) -> None:
        """Ends the bar of an evaluation."""


class Bar(tqdm):
    """tqdm's bar with its rate in examples and the memory in use. It has no colors.

    Args:
        examples: in a unit of the bar, on average; a unit is a step or a batch.
        device: whose memory is shown.
        total: units; None if unknown.
        settings: tqdm's own; `desc` is needed.
    """

    def __init__(self, examples: float, device: torch.device, total: int | None, **settings: Any) -> None:
        self._examples, self.device, self._paused = examples, device, 0.0
        place = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}" if total else "{n_fmt} batches"
        layout = f"{{desc}} {place} [{{facts}}]"
        super().__init__(total=total, dynamic_ncols=True, **{"mininterval": _EVERY, "bar_format": layout, **settings})

    def leave_out(self, seconds: float) -> None:
        """Leaves the time of an evaluation or a save out of the rate, but not out of the time left.

        As much of it is expected for each unit to come as for those that are done.
        """
        self._paused += seconds
        if not self.disable:
            self.last_print_t += seconds  # from which tqdm measures

    @property
    def format_dict(self) -> dict[str, Any]:
        """tqdm's facts with this bar's clocks, speed and memory, read when it is drawn and not at every step."""
        facts = super().format_dict
        done, elapsed = self.n - self.initial, facts["elapsed"]
        trained_for = elapsed - self._paused
        rate = facts["rate"] or (done / trained_for if done and trained_for > 0 else None)
        facts["clocks"] = tqdm.format_interval(elapsed)
        if self.total and rate:
            left = max(self.total - self.n, 0) * (1 / rate + self._paused / max(done, 1))
            facts["clocks"] += f"<{tqdm.format_interval(left)}"
        facts["speed"] = samples_per_second(rate * self._examples) if rate else "? samples/s"
        facts["memory"] = memory_in_use(self.device)
        facts["facts"] = ", ".join(filter(None, (facts["clocks"], facts["speed"], facts["memory"])))
        return facts


class Lines(Bar):
    """Stands in for a bar where there is no terminal: `update` returns True at each tenth, at most once a second."""

    monitor_interval = 0  # tqdm needs no thread that looks after it

    def __init__(self, examples: float, device: torch.device, total: int, initial: int = 0) -> None:
        tenth = max(1, math.ceil(total / 10))
        lines = {"miniters": tenth, "mininterval": SHORTEST, "maxinterval": math.inf, "smoothing": 0}
        super().__init__(examples, device, total, initial=initial, file=io.StringIO(), disable=False, **lines)
        self.last_print_n = initial - initial % tenth
        self._instances.discard(self)  # else bars of the user's would leave a line for it

    def close(self) -> None:
        """Ends it without a last line, also where Python is about to exit."""
        self.disable = True

    def note_line(self) -> None:
        """Records that another line has shown the progress."""
        self.last_print_n, self.last_print_t = self.n, self._time()


def samples_per_second(speed: float) -> str:
    return f"{speed:,.0f} samples/s" if speed >= 100 else f"{speed:.1f} samples/s"


def memory_in_use(device: torch.device) -> str:
    """Returns the memory of tensors on `device`, or of the process on the CPU, without waiting for the device."""
    live = psutil.Process().memory_info().rss if device.type == "cpu" else measure(device).live
    return "" if live is None else format_bytes(live)
