"""Splits training batches so that they fit into the memory of the device."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer, find_batch_size

from ..callbacks.events import Events
from ..checkpoints import run_files
from ..checkpoints.rng import read_rng
from ..checkpoints.state import read_state
from ..data.split import UnsplittableBatchError, examples_in
from ..guards.callbacks import failing_callback
from ..guards.memory_growth import free_unused
from ..guards.out_of_memory import NothingLeftToSplitError, out_of_memory
from ..training_args import TrainingArguments

logger = logging.getLogger(__name__)


@dataclass
class MicrobatchSplitter:
    """Trains on the batches of a run in parts that fit, for `auto_find_batch_size`.

    When memory runs out in an update, that update is begun again with its batches in halves, and so are all that
    follow. The loader, its order, the steps and the examples in each stay what they are: a part counts for the share
    of its items, as an accumulated batch does. Nothing has to be done anew but the one update, because the weights
    and the optimizer's state change at its end only.

    Args:
        train_on: `(batches, items, divisors)`: forward and backward for the batches of an update.
        begin_again: a callable that notes what an update changes before its end, and returns the one that undoes it.
        divisors, item_counts: `batches -> list`, as the Trainer's hooks of these names.
        split_batch: `(batch, most) -> batches`, the Trainer's.
        batch_size: examples in a batch of the loader.
        most: examples that are known to fit; None as long as whole batches do.
    """

    train_on: Callable[[list[Any], Any, Sequence[SupportsFloat | None]], None]
    begin_again: Callable[[], Callable[[], None]]
    divisors: Callable[[list[Any]], Sequence[SupportsFloat | None]]
    item_counts: Callable[[list[Any]], list[int | None]]
    split_batch: Callable[[Any, int], list[Any]]
    optimizer: Callable[[], Any]
    events: Events
    device: torch.device
    batch_size: int
    most: int | None = None

    def accumulate(self, batches: list[Any], num_items: Any) -> None:
        """Runs `train_on` on parts of the batch that fit into memory.

        Raises:
            NothingLeftToSplitError: if not even a single example fits, or batches cannot be split.
        """
        # one that updates weights while gradients are computed, so that the update cannot be begun again
        steps_early = isinstance(self.optimizer(), LayerWiseDummyOptimizer)
        while True:
            parts, divisors = self._parts(batches)
            undo = self.begin_again()
            try:
                self.train_on(parts, num_items, divisors)
            except RuntimeError as error:
                if not out_of_memory(error) or steps_early:
                    raise
                self._halve(parts, error, self.events.state.global_step + 1)
            else:
                return
            # out of the handler, whose error holds on to all that was computed
            undo()
            self._free()

    def end_step(self, batches: list[Any]) -> None:
        """Tells the callbacks that the update of `batches` has been made.

        If one runs out of memory, gives back what is unused, halves the microbatches and calls that one again.

        Raises:
            NothingLeftToSplitError: if memory runs out beside single examples, or batches cannot be split.
        """
        again = None
        while True:
            try:
                self.events.fire("on_step_end", since=again)
            except RuntimeError as error:
                if not (out_of_memory(error) and self.events.covers("on_step_end")):
                    raise
                self._halve(self._parts(batches)[0], error, self.events.state.global_step)
                again = failing_callback(error)
            else:
                return
            self._free()

    def _free(self) -> None:
        gc.collect()
        free_unused(self.device)

    def _parts(self, batches: list[Any]) -> tuple[list[Any], Sequence[SupportsFloat | None]]:
        """Returns the batches of an update in parts that fit, and the divisor for the loss of each."""
        shares = self.divisors(batches)
        if self.most is None:
            return batches, shares
        parts: list[Any] = []
        divisors: list[SupportsFloat | None] = []
        for batch, divisor in zip(batches, shares, strict=True):
            several = self.split_batch(batch, self.most)
            parts += several
            divisors += [divisor] if len(several) == 1 else self._divided(divisor, several)
        return parts, divisors

    def _divided(self, divisor: SupportsFloat | None, parts: list[Any]) -> list[float | None]:
        """Returns the divisors for the losses of the parts of a batch, where that of the whole has `divisor`."""
        if divisor is None:
            return [None] * len(parts)
        counts = [count or 0 for count in self.item_counts(parts)]
        if not sum(counts):
            counts = [_size(part) or 1 for part in parts]
        total = sum(counts)
        return [float(divisor) * (total / count) if count else None for count in counts]

    def _halve(self, parts: list[Any], error: RuntimeError, step: int) -> None:
        """Halves the batch size after `step` ran out of memory. Raises `error` if it cannot be halved."""
        largest = max(_size(part) or 1 for part in parts)
        size = most = self.most or max(largest, self.batch_size)
        count = len(parts)
        while count == len(parts):  # the last batch of an epoch may be smaller than half of the others
            if most == 1:
                raise NothingLeftToSplitError("it has one example") from error
            most = -(-most // 2)
            try:
                count = sum(len(self.split_batch(part, most)) for part in parts)
            except UnsplittableBatchError as reason:
                raise NothingLeftToSplitError(str(reason)) from error
        state = self.events.state
        self.most = state.train_batch_size = most
        logger.warning(
            "Memory ran out in step %d with batches of %d examples. From this step on batches have %d examples, and "
            "more of them are accumulated: each update still has the same examples, and no example is trained on "
            "twice.",
            step,
            largest if largest > 1 else size,
            most,
        )
        self.events.note("warning", f"Memory ran out. From here on training batches have {most} examples.")


def _size(batch: Any) -> int | None:
    """Returns the number of examples in `batch`, None where that cannot be told."""
    try:
        return examples_in(batch)
    except UnsplittableBatchError:
        return find_batch_size(batch)


def sizes_to_begin_with(args: TrainingArguments, resume_from: str | None) -> tuple[int, int | None]:
    """Returns the examples in a batch of the loader, and how many fit at a time if that is known to be fewer.

    They are what the arguments say, and what `auto_find_batch_size` had found when the checkpoint was made. A run of
    transformers' Trainer makes the loader's batches smaller instead, and goes on so.
    """
    asked = args.train_batch_size
    if resume_from is None or not args.auto_find_batch_size:
        return asked, None
    found = read_state(resume_from).get("train_batch_size")
    position = run_files.position_of(read_rng(resume_from), resume_from)
    if run_files.AT_A_TIME in position:
        return asked, position[run_files.AT_A_TIME]
    return (asked if found is None else int(found)), None
