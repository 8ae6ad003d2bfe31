"""Records figures of the simulated device for each step of a training run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from transformers.trainer_callback import TrainerCallback

from .session import SimulatedMPS

_COUNTERS = ("blocking_reads", "host_to_device", "device_to_host", "bytes_live")


@dataclass(frozen=True)
class StepFigures:
    """Counts of one optimizer step on the device, from its start to its end. Sizes are bytes.

    Fetching and moving the batch belongs to it where the Trainer does that after `on_step_begin`.
    """

    step: int
    operators: int
    new_graphs: int  # hardware compiles them at this step
    blocking_reads: int
    host_to_device: int
    device_to_host: int
    bytes_live: int


class SimulationCallback(TrainerCallback):
    """Records `StepFigures` of every step in `steps`. Works with this Trainer and with transformers'.

    Args:
        device: the result of `simulated_mps()` or `activate()`.
    """

    def __init__(self, device: SimulatedMPS) -> None:
        self.device = device
        self.steps: list[StepFigures] = []
        self._before: dict[str, int] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._before = self._totals()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = self._totals()
        changes = {name: now[name] - self._before[name] for name in now if name != "bytes_live"}
        self.steps.append(StepFigures(step=state.global_step, bytes_live=now["bytes_live"], **changes))

    def median(self, name: str) -> float:
        """Returns the median over the steps of the figure `name`."""
        return statistics.median(getattr(figures, name) for figures in self.steps)

    def _totals(self) -> dict[str, int]:
        report = self.device.report()
        totals = {name: getattr(report, name) for name in _COUNTERS}
        return {**totals, "operators": report.operator_calls, "new_graphs": report.graphs}
