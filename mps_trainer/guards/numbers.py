"""Detects losses and gradient norms that are not finite: the first one, and when to warn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# Steps in a row that overflow before it counts under a gradient scaler. The scale begins at 2**16 and is halved at
# each, so by then it is below 1, and it is not the scale that is too large.
OVERFLOWS = 20


@dataclass(frozen=True)
class NonFinite:
    """The first number since the last check that is not finite.

    Args:
        what: "loss" or "gradient norm".
        value: nan, inf or -inf.
        step: updates that were done before the one it belongs to.
        rate: learning rate of that update; None where the schedule was not asked yet.
    """

    what: str
    value: float
    step: int
    rate: float | None = None


class NumberWatch:
    """Checks numbers that were read from the device for the log.

    Args:
        scaled: a gradient scaler leaves out updates whose gradients overflow. That is how it finds its scale, so an
            overflow counts only after `OVERFLOWS` of them in a row; a loss always does.
    """

    def __init__(self, scaled: bool = False) -> None:
        self.scaled = scaled
        self.first: NonFinite | None = None
        self.steps = 0  # they have had such a number since the last take()
        self._overflows = 0  # in a row

    def look(self, losses: Iterable[tuple[float, int]], norms: Iterable[tuple[float, int, float | None]]) -> None:
        """Checks losses of batches and norms of updates.

        Each comes with the number of updates before it, a norm also with the learning rate.
        """
        bad: dict[int, tuple[str, float]] = {}
        rates: dict[int, float | None] = {}
        for value, step in losses:
            if not math.isfinite(value):
                bad.setdefault(step, ("loss", value))
        for value, step, rate in norms:
            rates[step] = rate
            self._overflows = 0 if math.isfinite(value) else self._overflows + 1
            if self._overflows and (not self.scaled or self._overflows >= OVERFLOWS):
                bad.setdefault(step, ("gradient norm", value))
        if bad:
            self.steps += len(bad)
            if self.first is None:
                step = min(bad)
                self.first = NonFinite(*bad[step], step, rates.get(step))

    def take(self) -> tuple[NonFinite | None, int]:
        """Returns the first since the last call, and the number of steps with such a number since then."""
        taken = self.first, self.steps
        self.first, self.steps = None, 0
        return taken
