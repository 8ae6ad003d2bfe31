"""Shows progress without a terminal: a line at each tenth."""

from __future__ import annotations

import math
import time

from .progress_bars import clocks, samples_per_second

# Seconds: what goes by faster needs no line, and a log of many short evaluations stays readable.
SHORTEST = 1.0


class Tenths:
    """Tells when a line on progress through `total` units is due, and its content.

    Args:
        examples: in a unit, on average.
        begun_at: units that were done before.
    """

    def __init__(self, total: int, examples: float, begun_at: int = 0) -> None:
        self.total, self.begun_at = total, begun_at
        self._examples = examples
        self._start = self._told_at = time.perf_counter()
        self._apart = 0.0
        self._told = False
        self.next = self._after(begun_at)

    def due(self, done: int) -> bool:
        """Returns True if a line is due: once for each tenth in which there was none, at most once a second."""
        if done < self.next:
            return False
        self.next = self._after(done)
        told, self._told = self._told, False
        now = time.perf_counter()
        if told or now - self._told_at < SHORTEST:
            return False
        self._told_at = now
        return True

    def tell(self) -> None:
        """Records that another line has shown the progress."""
        self._told, self._told_at = True, time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leaves the time of an evaluation or a save out of the rate, but not out of the time left."""
        self._apart += seconds

    def clocks(self, done: int) -> str:
        """Returns the time since the beginning, and the time left."""
        elapsed = time.perf_counter() - self._start
        units = done - self.begun_at
        return clocks(elapsed, (self.total - done) * elapsed / units if units > 0 else None)

    def speed(self, done: int) -> str | None:
        """Returns examples per second since the beginning."""
        trained_for = time.perf_counter() - self._start - self._apart
        units = done - self.begun_at
        return samples_per_second(units * self._examples / trained_for) if units > 0 and trained_for > 0 else None

    def _after(self, done: int) -> int:
        """Returns the units at the end of the tenth of the next unit."""
        return math.ceil((done * 10 // max(self.total, 1) + 1) * self.total / 10)
