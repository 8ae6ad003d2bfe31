"""Training batches that fit into the memory of the device."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

from transformers.trainer_pt_utils import LayerWiseDummyOptimizer, find_batch_size

from ..checkpoints.rng import read_rng
from ..checkpoints.state import read_state
from ..data.split import UnsplittableBatchError, examples_in
from ..guards.exhausted import NothingLeftToSplitError, out_of_memory
from ..guards.growth import free_unused
from . import checkpoint

if TYPE_CHECKING:
    from .loop import TrainingLoop
    from .trainer import Trainer

logger = logging.getLogger(__name__)


class FittingBatches:
    """Trains on the batches of a run in parts that fit, for `auto_find_batch_size`.

    When memory runs out in an update, that update is begun again with its batches in halves, and so are all that
    follow. The loader, its order, the steps and the examples in each stay what they are: a part counts for the share
    of its items, as an accumulated batch does. Nothing has to be done anew but the one update, because the weights
    and the optimizer's state change at its end only.

    Args:
        most: examples that are known to fit; None as long as whole batches do.
    """

    def __init__(self, loop: TrainingLoop, most: int | None) -> None:
        self.loop, self.trainer, self.most = loop, loop.trainer, most
        # updates weights while gradients are computed, so that the update cannot be begun again
        self._steps_early = isinstance(self.trainer.optimizer, LayerWiseDummyOptimizer)

    def accumulate(self, batches: list[Any], num_items: Any) -> None:
        """As the loop does it, in parts that fit.

        Raises:
            NothingLeftToSplitError: if not even a single example fits, or batches cannot be split.
        """
        loop, trainer, state = self.loop, self.trainer, self.loop.state
        while True:
            parts, divisors = self._parts(batches)
            counted = trainer.current_flos, state.num_input_tokens_seen
            try:
                loop.accumulate(parts, num_items, divisors)
            except RuntimeError as error:
                if not out_of_memory(error) or self._steps_early:
                    raise
                self._halve(parts, error)
            else:
                return
            # out of the handler, whose error holds on to all that was computed
            loop.gradients.clear()
            loop.meter.take_back(state.global_step)
            trainer.current_flos, state.num_input_tokens_seen = counted
            gc.collect()
            free_unused(trainer.args.device)

    def _parts(self, batches: list[Any]) -> tuple[list[Any], list[float | None]]:
        """The batches of an update in parts that fit, and what the loss of each is divided by."""
        shares = self.trainer.shares(batches)
        if self.most is None:
            return batches, shares
        parts: list[Any] = []
        divisors: list[float | None] = []
        for batch, divisor in zip(batches, shares, strict=True):
            several = self.trainer.split_batch(batch, self.most)
            parts += several
            divisors += [divisor] if len(several) == 1 else self._divided(divisor, several)
        return parts, divisors

    def _divided(self, divisor: float | None, parts: list[Any]) -> list[float | None]:
        """What the losses of the parts of a batch are divided by, where that of the whole was by `divisor`."""
        if divisor is None:
            return [None] * len(parts)
        counts = [count or 0 for count in self.trainer._item_counts(parts)]
        if not sum(counts):
            counts = [_size(part) or 1 for part in parts]
        total = sum(counts)
        return [divisor * (total / count) if count else None for count in counts]

    def _halve(self, parts: list[Any], error: RuntimeError) -> None:
        """Halves what is trained on at a time. Raises `error` where that cannot be."""
        largest = max(_size(part) or 1 for part in parts)
        size = most = self.most or max(largest, self.trainer._train_batch_size)
        count = len(parts)
        while count == len(parts):  # the last batch of an epoch may be smaller than half of the others
            if most == 1:
                raise NothingLeftToSplitError("it has one example") from error
            most = -(-most // 2)
            try:
                count = sum(len(self.trainer.split_batch(part, most)) for part in parts)
            except UnsplittableBatchError as reason:
                raise NothingLeftToSplitError(str(reason)) from error
        self.most = self.loop.state.train_batch_size = most
        logger.warning(
            "Memory ran out in step %d with %d examples at a time. From this step on it is %d at a time, with more of "
            "them accumulated: an update has the same examples as before, and nothing is trained on twice.",
            self.loop.state.global_step + 1,
            largest if largest > 1 else size,
            most,
        )
        self.trainer.note_event("warning", f"Memory ran out. From here on {most} examples are trained on at a time.")


def _size(batch: Any) -> int | None:
    """Examples in `batch`, None where that cannot be told."""
    try:
        return examples_in(batch)
    except UnsplittableBatchError:
        return find_batch_size(batch)


def sizes_to_begin_with(trainer: Trainer, resume_from: str | None) -> tuple[int, int | None]:
    """Examples in a batch of the loader, and how many of them are trained on at a time if that is known to be less.

    They are what the arguments say, and what `auto_find_batch_size` had found when the checkpoint was made. A run of
    transformers' Trainer makes the loader's batches smaller instead, and goes on so.
    """
    asked = trainer.args.train_batch_size
    if resume_from is None or not trainer.args.auto_find_batch_size:
        return asked, None
    found = read_state(resume_from).get("train_batch_size")
    position = checkpoint.position_of(read_rng(resume_from), resume_from)
    if checkpoint.AT_A_TIME in position:
        return asked, position[checkpoint.AT_A_TIME]
    return (asked if found is None else int(found)), None
