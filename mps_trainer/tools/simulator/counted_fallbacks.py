"""Counts the operators that fall back during a run, in place of `reports.fallbacks.FallbackWatch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CountedFallbacks:
    """Counts, for the report of a run, the operators that fall back to the CPU up to `end`.

    Args:
        counters: `SimulatedMPS.counters` of the active device.
    """

    def __init__(self, counters: Callable[[], dict[str, Any]]) -> None:
        self._counters, self._before = counters, counters()["operators"]

    def end(self) -> dict[str, Any]:
        """Returns `text`, `operators` with name, calls and shapes, and `shapes` of all operators together."""
        operators, shapes = [], 0
        for name, (calls, kinds, fell_back) in self._counters()["operators"].items():
            before = self._before.get(name, (0, 0, False))
            shapes += kinds - before[1]
            if fell_back and calls > before[0]:
                operators.append({"name": name, "calls": calls - before[0], "shapes": kinds - before[1]})
        operators.sort(key=lambda operator: -operator["calls"])
        text = f"{'' if operators else 'None. '}The simulated device counts each call."
        return {"text": text, "operators": operators, "shapes": shapes}
