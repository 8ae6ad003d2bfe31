"""Splits training batches so that they fit into the memory of the device."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from ..checkpoints.loading import EXAMPLES_AT_A_TIME, read_position, read_state
from ..data.epoch_loader import keep_examples, load_in_parts
from ..data.split import UnsplittableBatchError, examples_in
from ..guards.callbacks import failing_callback
from ..guards.memory import free_unused
from ..guards.memory_errors import NothingLeftToSplitError, out_of_memory
from ..training_args import TrainingArguments
from ..utils.nested import find_batch_size
from .batch_history import BatchHistory
from .clipping import Gradients
from .loss_divisors import UpdateLoss
from .position import Position, Update
from .rollback import Rollback
from .surface import TrainerSurface

logger = logging.getLogger(__name__)


class MicrobatchSplitter:
    """Trains on the batches of a run in microbatches that fit, for `auto_find_batch_size`.

    When memory runs out in an update, that update is repeated with its batches in halves, and all that follow are
    halved too. The loader, its order, the steps and their examples do not change: a microbatch is weighted
    by its items, as an accumulated batch is. Only the one update is repeated, because the weights and the optimizer's
    state change at its end.

    Args:
        position: holds the size that fits.
        rollback: undoes an update before it is repeated.
        gradients: clears the gradients before that.
        history: knows the rows of each batch in the dataset.
        batch_size: examples in a batch of the loader.
        max_rows: the most rows that a batch can have if each is an example; None: not known.
        loss: counts the items of batches.
        move_loaded: moves batches to the device if the loader's batches have been moved.
    """

    def __init__(
        self,
        trainer: TrainerSurface,
        position: Position,
        rollback: Rollback,
        gradients: Gradients,
        history: BatchHistory,
        batch_size: int,
        max_rows: int | None,
        loss: UpdateLoss,
        move_loaded: Callable[[Any], Any],
    ) -> None:
        self.trainer, self.position, self.rollback, self.gradients = trainer, position, rollback, gradients
        self.history, self.batch_size, self.loss, self.move_loaded = history, batch_size, loss, move_loaded
        self._max_rows, self._rows_are_examples = max_rows, True
        self._loads_again = not trainer._mt_overrides.split_batch
        if self._loads_again:
            keep_examples(history.loader)
        # an override may exchange numbers in each pass, as TRL's do, so all processes have to make as many
        self._makes_equal_passes = trainer._mt_processes.is_distributed and trainer._mt_overrides.compute_loss
        self._has_warned = False
        self._batches: list[Any] = []  # they make the update under way

    def accumulate(self, train_on: Callable[[list[Any], Any, Any, int], None], update: Update) -> None:
        """Calls `train_on(microbatches, num_items, divisors, count)` with microbatches that fit into memory.

        Raises:
            NothingLeftToSplitError: if not even a single example fits, or batches cannot be split.
        """
        # such an optimizer updates weights while gradients are computed, so the update cannot be repeated
        steps_early = isinstance(self.trainer.optimizer, LayerWiseDummyOptimizer)
        before, self._batches = self.rollback.snapshot(), update.batches
        while True:
            microbatches, divisors = self._split(update.batches)
            try:
                train_on(microbatches, update.num_items, divisors, len(update.batches))
            except RuntimeError as error:
                # the other processes have not run out of memory, and exchange no gradients again
                if not out_of_memory(error) or steps_early or self.trainer._mt_processes.is_distributed:
                    raise
                self._halve(update.batches, len(microbatches), error, self.trainer.state.global_step + 1)
            else:
                return
            # outside of the handler, because its error keeps alive all that was computed
            self.gradients.clear(self.trainer.optimizer)
            self.rollback.restore(before)
            self._free()

    def end_step(self) -> None:
        """Fires on_step_end.

        If a callback runs out of memory, frees unused memory, halves the microbatches and calls that one again. In
        several processes the run ends instead, because the others would not know of it.

        Raises:
            NothingLeftToSplitError: if memory runs out beside single examples, or batches cannot be split.
        """
        again, events = None, self.trainer._mt_events
        while True:
            try:
                events.fire("on_step_end", since=again)
            except RuntimeError as error:
                can_repeat = events.covers("on_step_end") and not self.trainer._mt_processes.is_distributed
                if not (out_of_memory(error) and can_repeat):
                    raise
                self._halve(self._batches, len(self._split(self._batches)[0]), error, self.trainer.state.global_step)
                again = failing_callback(error)
            else:
                return
            self._free()

    def _free(self) -> None:
        gc.collect()
        free_unused(self.trainer.args.device)

    def _split(self, batches: list[Any]) -> tuple[list[Any], Sequence[SupportsFloat | None]]:
        """Returns the microbatches of an update and the divisor for the loss of each."""
        of_batches, max_examples = self.loss.divisors(batches), self.position.examples_at_a_time
        if max_examples is None:
            return batches, of_batches
        microbatches: list[Any] = []
        divisors: list[SupportsFloat | None] = []
        for number, (batch, divisor) in enumerate(zip(batches, of_batches, strict=True)):
            try:
                several = self._parts(number, batch, max_examples)
            except UnsplittableBatchError as reason:
                if not self._has_warned:
                    logger.warning(
                        "A batch of %d examples or more stays whole, and others like it: %s", max_examples, reason
                    )
                several, self._has_warned = [batch], True
            microbatches += several
            divisors += [divisor] if len(several) == 1 else self._divided(divisor, several)
        if self._makes_equal_passes:
            passes = len(microbatches)
            largest, smallest = self.trainer._mt_processes.all_reduce_max([passes, -passes])
            if largest != -smallest:  # the end of an epoch has fewer examples for some
                return batches, of_batches
        return microbatches, divisors

    def _parts(self, number: int, batch: Any, max_examples: int) -> list[Any]:
        """Splits the batch of this number, or loads its examples again in smaller batches."""
        rows = self.history.rows_of_batch(number) if self._loads_again else None
        if rows is None or len(rows) < 2:  # a dataset may have whole batches as rows
            return self._cut(batch, max_examples)
        try:
            if examples_in(batch) == len(rows):
                return self._cut(batch, max_examples)
        except UnsplittableBatchError:
            pass
        if len(rows) <= max_examples:
            return [batch]
        parts = load_in_parts(self.history.loader, rows, max_examples)
        (items,), of_parts = self.loss.counter.each([batch]), self.loss.counter.each(parts)
        if items is not None and items != sum(count or 0 for count in of_parts):
            raise UnsplittableBatchError("it has other labels when its examples are loaded again in smaller batches")
        return [self.move_loaded(part) for part in parts]

    def _cut(self, batch: Any, max_examples: int) -> list[Any]:
        """Returns `split_batch`, if the rows of the run's batches are examples.

        TRL's trainers on preferences put the rejected answers below the chosen ones: half the rows would be the wrong
        pairs.
        """
        if self._max_rows is not None and examples_in(batch) > self._max_rows:
            self._rows_are_examples = False
        if not self._rows_are_examples:
            raise UnsplittableBatchError(
                "the batches of this run have more rows than examples, as TRL's pairs of answers do"
            )
        return self.trainer.split_batch(batch, max_examples)

    def _divided(self, divisor: SupportsFloat | None, microbatches: list[Any]) -> list[float | None]:
        """Returns the divisors for the losses of the microbatches of a batch whose loss has `divisor`."""
        if divisor is None:
            return [None] * len(microbatches)
        boxes = [count for each in microbatches if (count := _boxes(each)) is not None]
        if len(boxes) == len(microbatches):  # each loss is divided by its own boxes, at least 1, which also has a loss
            return [float(divisor) * max(1, sum(boxes)) / max(1, count) for count in boxes]
        counts = [count or 0 for count in self.loss.counter.each(microbatches)]
        if not sum(counts):
            counts = [_size(each) or 1 for each in microbatches]
        total = sum(counts)
        return [float(divisor) * (total / count) if count else None for count in counts]

    def _halve(self, batches: list[Any], before: int, error: RuntimeError, step: int) -> None:
        """Halves the microbatches after `step` ran out of memory with `before` of them.

        Raises `error` if they cannot be halved.
        """
        largest = max(self._examples_in(number, each) for number, each in enumerate(batches))
        size = max_examples = self.position.examples_at_a_time or max(largest, self.batch_size)
        count = before
        while count <= before:  # the last batch of an epoch may be smaller than half of the others
            if max_examples == 1:
                raise NothingLeftToSplitError("it has one example") from error
            max_examples = -(-max_examples // 2)
            try:
                count = sum(len(self._parts(number, each, max_examples)) for number, each in enumerate(batches))
            except UnsplittableBatchError as reason:
                raise NothingLeftToSplitError(str(reason)) from error
        self.position.examples_at_a_time = self.trainer.state.train_batch_size = max_examples
        logger.warning(
            "Memory ran out in step %d with batches of %d examples. From this step on batches have %d examples, and "
            "more of them are accumulated: each update still has the same examples, and no example is trained on "
            "twice.",
            step,
            min(largest, size) if largest > 1 else size,
            max_examples,
        )
        if self.trainer._mt_supervised is not None:
            self.trainer._mt_supervised.note(self.trainer.state.global_step, max_examples)
        note = f"Memory ran out. From here on training batches have {max_examples} examples."
        self.trainer._mt_events.note("warning", note)

    def _examples_in(self, number: int, batch: Any) -> int:
        rows = self.history.rows_of_batch(number) if self._loads_again else None
        return len(rows) if rows is not None and len(rows) > 1 else _size(batch) or 1


def _boxes(batch: Any) -> int | None:
    """Returns the number of boxes, by which detectors divide a batch's loss; None for other models."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, (list, tuple)) or not all(isinstance(each, Mapping) for each in labels):
        return None
    if not labels or not all("class_labels" in each for each in labels):
        return None
    return sum(len(each["class_labels"]) for each in labels)


def _size(batch: Any) -> int | None:
    """Returns the number of examples in `batch`, None if it is unknown."""
    try:
        return examples_in(batch)
    except UnsplittableBatchError:
        return find_batch_size(batch)


def initial_batch_sizes(
    args: TrainingArguments, resume_from: str | None, limit: int | None = None
) -> tuple[int, int | None]:
    """Returns the examples in a batch of the loader, and how many fit at a time if that is known to be fewer.

    They are what the arguments say, and what `auto_find_batch_size` had found when the checkpoint was made. A run of
    transformers' Trainer makes the loader's batches smaller instead, and goes on so.

    Args:
        limit: the most examples at a time, after a restart because of memory.
    """
    asked = args.train_batch_size
    if resume_from is None or (limit is None and not args.auto_find_batch_size):
        return asked, limit
    position = read_position(resume_from)
    found = position.get(EXAMPLES_AT_A_TIME)
    if limit is not None:
        return asked, min(limit, found or limit)
    if EXAMPLES_AT_A_TIME in position:
        return asked, found
    return int(read_state(resume_from).get("train_batch_size") or asked), None
