"""Records which batches each update of a run had, so that messages can name their rows."""

from __future__ import annotations

from typing import Any

from ..data.faults import naming, rows_of_batches
from ..utils.nested import find_batch_size
from .position import Update

_RECORDED = 2**14  # updates; losses are checked at the next log, so older ones are rarely needed


class BatchHistory:
    """Records the batches of each update, and names the rows of the training dataset in them.

    Args:
        is_plain: True if the batches of an update are taken from the loader one after the other. If a subclass takes
            them in another way, their rows are unknown.
    """

    def __init__(self, loader: Any, is_plain: bool) -> None:
        self.loader, self.is_plain = loader, is_plain
        self._updates: dict[int, tuple[int, int, int]] = {}  # by step: the epoch, its first batch, and how many

    def record(self, step: int, update: Update) -> None:
        """Records the place of the batches of the update after `step`."""
        self._updates[step] = update.epoch, update.first_batch, len(update.batches)
        examples = getattr(self.loader, "examples", {})
        for before in [each for each in examples if each < (update.epoch, update.first_batch)]:
            del examples[before]
        if len(self._updates) > _RECORDED:
            del self._updates[next(iter(self._updates))]

    def rows(self, step: int) -> list[int] | None:
        """Returns the rows of the update after `step`; None if they are unknown."""
        return rows_of_batches(self.loader, *self._updates[step]) if self.is_plain and step in self._updates else None

    def rows_of_batch(self, number: int) -> list[Any] | None:
        """Returns the rows of a batch, by its number from 0, in the last update; None if they are unknown.

        A stream has no indices of rows: returns the examples if its loader keeps them.
        """
        if not self.is_plain or not self._updates:
            return None
        epoch, first, _ = self._updates[next(reversed(self._updates))]
        kept = getattr(self.loader, "examples", {}).get((epoch, first + number))
        return rows_of_batches(self.loader, epoch, first + number) if kept is None else kept

    def describe(self, step: int) -> str:
        """Returns the rows or batches of the update after `step` in words."""
        if (rows := self.rows(step)) is not None:
            return f"{naming(rows)} of the training dataset"
        if step not in self._updates:
            return "its batches are no longer known"
        epoch, first, count = self._updates[step]
        which = f"batch {first}" if count == 1 else f"batches {first} to {first + count - 1}"
        return f"{which} of epoch {epoch}, counted from 0"

    def name_row(self, step: int, batches: list[Any], number: int, row: int) -> str:
        """Returns a description of a row of `batches[number]`, where `batches` make the update after `step`."""
        sizes, rows = [find_batch_size(batch) or 0 for batch in batches], self.rows(step)
        if rows is None or len(rows) != sum(sizes):  # a collator may join examples
            return f"Row {row} of a batch in step {step + 1}"
        return f"Row {rows[sum(sizes[:number]) + row]} of the training dataset"
