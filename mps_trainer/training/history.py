"""Finds the batches and the rows of the dataset that a step was made from, after the fact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..data.rows import naming, rows_of_batches
from .plan import StepPlan


@dataclass(frozen=True)
class BatchOrigin:
    """The batches of a step: `count` batches of an epoch from the batch `first` on, both counted from 0.

    `rows` are the indices of the examples in the training dataset, None where they cannot be told.
    """

    epoch: int
    first: int
    count: int
    rows: list[int] | None

    def __str__(self) -> str:
        if self.rows is not None:
            return f"{naming(self.rows)} of the training dataset"
        which = f"batch {self.first}" if self.count == 1 else f"batches {self.first} to {self.first + self.count - 1}"
        return f"{which} of epoch {self.epoch}, counted from 0"


class BatchHistory:
    """Knows where each epoch began, which is enough to find the batches of any step in it.

    Args:
        is_plain: whether the batches of an update are taken from the loader one after the other. Where a subclass
            takes them its own way, the rows cannot be told.
    """

    def __init__(self, loader: Any, plan: StepPlan, is_plain: bool) -> None:
        self.loader, self.plan, self.is_plain = loader, plan, is_plain
        self._begun: list[tuple[int, int, int]] = []

    def begin(self, epoch: int, step: int, done: int) -> None:
        """Notes that the update after `step` begins with the batch `done` of `epoch`."""
        self._begun.append((step, epoch, done))

    def origin(self, step: int) -> BatchOrigin:
        """Returns the batches that the update after `step` was, or is to be, made from."""
        start, epoch, done = max((begun for begun in self._begun if begun[0] <= step), default=(step, 0, 0))
        first = done + (step - start) * self.plan.accumulation
        count = self.plan.batches_in_update(first)
        rows = rows_of_batches(self.loader, epoch, first, count) if self.is_plain else None
        return BatchOrigin(epoch, first, count, rows)
