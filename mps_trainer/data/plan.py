"""Computes the number of steps of a run, and the epoch and batch of a step."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from .buckets import buckets_of
from .epoch_loader import length_of

MOST_STEPS = 10**12


@dataclass(frozen=True)
class StepPlan:
    """The steps of a run. A step is one update of the weights, made from `accumulation` batches.

    Args:
        batches_per_epoch: None for a stream of unknown length, whose epochs end when it does.
        updates_per_epoch: the last update of an epoch may have fewer batches than the others.
        epochs: epochs started, rounded up; the last one may stop early.
    """

    batches_per_epoch: int | None
    accumulation: int
    updates_per_epoch: int
    max_steps: int
    epochs: int

    @classmethod
    def of(cls, loader: Any, args: TrainingArguments) -> StepPlan:
        """Returns the plan for the batches of `loader`. Raises the errors of `make`."""
        buckets = buckets_of(loader)
        accumulation = args.gradient_accumulation_steps * (1 if buckets is None else buckets.chunks)
        return cls.make(length_of(loader), accumulation, args.max_steps, args.num_train_epochs)

    @classmethod
    def make(cls, batches: int | None, accumulation: int, max_steps: int, num_train_epochs: float) -> StepPlan:
        """Returns the plan for `batches` in an epoch and the limits that the arguments set.

        Raises:
            ValueError: for an empty dataset, or for a stream without a limit in steps.
            MisconfigurationException: for more steps than a run can make.
        """
        if batches == 0:
            raise ValueError(
                "There is nothing to train on: the training dataset gives no batch. Check that it is not empty, and "
                "that dataloader_drop_last does not leave out its only batch."
            )
        if batches is None and max_steps < 0:
            raise ValueError(
                "The training dataset has no length, so num_train_epochs does not define the number of steps. "
                "Set max_steps."
            )
        updates = max_steps if batches is None else math.ceil(batches / accumulation)
        steps: float = max_steps if max_steps >= 0 else num_train_epochs * updates
        if steps > MOST_STEPS:
            asked = f"max_steps={max_steps}" if max_steps >= 0 else f"num_train_epochs={num_train_epochs:g}"
            raise MisconfigurationException(
                f"{asked} asks for {steps:.3g} steps, and such a run does not end: {MOST_STEPS:.0e} steps take three "
                f"years at 10,000 in a second. Ask for at most {MOST_STEPS:.0e} steps; a callback such as "
                "EarlyStoppingCallback may end a run earlier."
            )
        if batches is None:
            return cls(None, accumulation, updates, max_steps, sys.maxsize)
        epochs = max_steps / updates if max_steps >= 0 else num_train_epochs
        return cls(batches, accumulation, updates, math.ceil(steps), math.ceil(epochs))

    def position_after(self, step: int) -> tuple[int, int]:
        """Returns the epoch of the step after `step`, and the number of its batches used by the steps up to `step`."""
        epoch, updates = divmod(step, self.updates_per_epoch)
        return epoch, updates * self.accumulation

    def batches_in_update(self, done: int, accumulation: int) -> int:
        """Returns the number of batches, at most `accumulation`, in the update after the first `done` of an epoch."""
        if self.batches_per_epoch is None:
            return accumulation
        return min(accumulation, max(self.batches_per_epoch - done, 1))

    def progress(self, epoch: int, batches: int) -> float:
        """Returns the completed epochs, as a fraction, after `batches` batches of `epoch`."""
        return epoch + batches / (self.batches_per_epoch or self.max_steps * self.accumulation)
