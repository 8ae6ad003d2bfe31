"""Progress where there is no terminal to draw a bar on: a line at each tenth."""

from __future__ import annotations

import math
import time

from .bars import clocks, samples_per_second

# Seconds: what goes by faster needs no line, and a log of many short evaluations stays readable.
SHORTEST = 1.0


class Tenths:
    """Says when a line is due of something that has `total` units, and what is in it.

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
        """Whether to write a line: once for each tenth in which there was none, and not more often than a second."""
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
        """A line has been written that says how far things are."""
        self._told, self._told_at = True, time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Time that went into something else, and counts as time left but not in the rate."""
        self._apart += seconds

    def clocks(self, done: int) -> str:
        """The time since the beginning, and the time left."""
        elapsed = time.perf_counter() - self._start
        units = done - self.begun_at
        return clocks(elapsed, (self.total - done) * elapsed / units if units > 0 else None)

    def speed(self, done: int) -> str | None:
        """Examples a second since the beginning."""
        trained_for = time.perf_counter() - self._start - self._apart
        units = done - self.begun_at
        return samples_per_second(units * self._examples / trained_for) if units > 0 and trained_for > 0 else None

    def _after(self, done: int) -> int:
        """The units at which the tenth is full in which the next unit lies."""
        return math.ceil((done * 10 // max(self.total, 1) + 1) * self.total / 10)
