"""Warns about a loss or gradient norm that is not finite, and stops the run with `stop_on_nan`."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ..callbacks.events import Events
from ..checkpoints.saver import CheckpointSaver
from ..distributed.sharded import local
from ..errors import NonFiniteLossError
from ..guards.numbers import OVERFLOWS, NonFinite, NumberWatch
from .batch_history import BatchHistory
from .clipping import Gradients
from .rollback import Rollback
from .surface import TrainerSurface

logger = logging.getLogger(__name__)


class NonFiniteReporter:
    """Reports the origin of a number that is not finite, and what to do about it."""

    def __init__(self, watch: NumberWatch, history: BatchHistory, events: Events, mixed_precision: str) -> None:
        self.watch, self.history, self.events = watch, history, events
        self.remedy = "lower learning_rate" + (", use bf16 instead of fp16" if mixed_precision == "fp16" else "")

    def warn(self) -> None:
        """Warns about the first such number since the last call."""
        found, steps = self.watch.take()
        if found is None:
            return
        happened = self.describe(found, found.rate)
        self.events.note("warning", f"The {happened}")
        more = "" if steps == 1 else f" It is the first of {steps} such steps since the last log."
        logger.warning(
            "The %s%s What to do: %s, or look at those examples. With stop_on_nan=True a run ends before such a step, "
            "with a checkpoint to go on from.",
            happened,
            more,
            self.remedy,
        )

    def describe(self, found: NonFinite, learning_rate: float | None) -> str:
        """Describes the number, its step and its examples."""
        was = f"{found.what} was {found.value} at step {found.step + 1}"
        if self.watch.scaled and found.what != "loss":
            was += f", in the last of {OVERFLOWS} steps in a row that the scaler of fp16 left out"
        at = "" if learning_rate is None else f"learning rate {learning_rate:g}, "
        return f"{was} ({at}{self.history.describe(found.step)})."


class StopOnNan:
    """Checks each update before its step, with one sync, and stops the run at the first that is not finite."""

    def __init__(
        self, trainer: TrainerSurface, rollback: Rollback, gradients: Gradients, reporter: NonFiniteReporter
    ) -> None:
        self.trainer, self.rollback, self.gradients, self.reporter = trainer, rollback, gradients, reporter
        self._before: dict[str, Any] = {}

    def take_snapshot(self) -> None:
        """Records the state of the run before an update, before any of its batches is loaded."""
        self._before = self.rollback.snapshot(before_loading=True)

    def check(self, grad_norm: Any, step: int) -> float | None:
        """Returns the gradient norm of the update after `step` as a number.

        Raises:
            NonFiniteLossError: if the norm or a loss of the update is not finite. The run is then as it was before the
                update, and is saved in a checkpoint.
        """
        meter, processes = self.rollback.position.meter, self.trainer._mt_processes
        norm = meter.read_norm(grad_norm, step)
        found, _ = meter.watch.take()
        if processes.all_reduce_max([found is not None])[0]:  # one process alone may have such a loss
            rate = self.trainer._get_learning_rate()
            rows = self.reporter.history.rows(step)
            own = None if found is None else (found.what, self.reporter.describe(found, rate), rows)
            of_all = [each for each in processes.gather(own) if each is not None]
            # a loss comes first: its rows are known, and gradients are exchanged
            _, happened, rows = max(of_all, key=lambda each: each[0] == "loss")
            raise self._stop(step, rate, happened, rows)
        return norm

    def _stop(self, step: int, rate: float, happened: str, rows: list[int] | None) -> NonFiniteLossError:
        self.gradients.clear(self.trainer.optimizer)
        self.trainer._mt_precision.abandon_step()
        self.rollback.restore(self._before)
        checkpoint, saved = self._checkpoint(step)
        remedy = f"What to do: {self.reporter.remedy}, or look at those examples"
        then = "." if checkpoint is None else f"; then go on with resume_from_checkpoint={checkpoint!r}."
        message = f"The {happened} The weights were not updated. {saved} {remedy}{then}"
        return NonFiniteLossError(message, step + 1, rate, rows, checkpoint)

    def _checkpoint(self, step: int) -> tuple[str | None, str]:
        """Returns the folder to resume from and a sentence about it."""
        checkpoints, saver = self.trainer._mt_checkpoints, CheckpointSaver(self.trainer)
        parameters = [local(each) for each in self.gradients.parameters if each.is_floating_point()]  # own shards
        is_damaged = not all(bool(torch.isfinite(each).all()) for each in parameters)
        if self.trainer._mt_processes.all_reduce_max([is_damaged])[0]:
            # a checkpoint of them could replace a better one
            saver.wait()
            why = f"The weights after step {step} are not finite either, so they were not saved."
            return checkpoints.newest(), why
        saver.save_through_trainer()
        if not self.trainer.args.should_save:
            return None, "The main process has saved a checkpoint of the previous step."
        saver.wait()
        folder = checkpoints.folder(step)
        if not os.path.isdir(folder):
            return None, "No checkpoint is left."
        return folder, f"{folder} holds the state before this step."
