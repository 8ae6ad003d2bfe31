"""Owns the position of a run: its epoch, batch and random numbers, and what is left to do after its last step.

Who owns what:

- `StepPlan` has the batches of an epoch, and the epochs and steps of the run. It never changes.
- `trainer.state`, which callbacks read, has the step. The position is handed this object, and reads the step from it.
- `Position` has everything else that tells where the run is. `state_dict` and `load_state_dict` carry it over to the
  process that resumes the run; `snapshot` and `restore` undo an update or an evaluation that did not end.
- `Rollback` undoes what such an update changed beside it: buffers of the model, and the count of operations.
- `BatchSource`, a part of `Position`, has the pass over the loader and the random states. At a resume it alone
  restores them.
- The loader and its samplers know the position only during a pass, whose epoch and first batch `BatchSource` gives
  them. `EpochLoader.iteration` and `SeededSampler.epoch` count on for people who iterate by hand; a run does not read
  them. `PrefetchIterator` has the batch that is loaded ahead, and the random states before it.
- `LossMeter` has the losses since the last log. Its `first_step` and `last_read_step` are what it divides by. They are
  saved with the position, because a checkpoint may lie between two logs.
- The run fires the events of epochs and steps, and counts the step. A callback may end an epoch: `is_epoch_cut`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers.trainer_callback import TrainerState

from ..checkpoints.loading import EXAMPLES_AT_A_TIME
from ..data.plan import StepPlan
from .batch_source import BatchSource
from .meter import LossMeter


@dataclasses.dataclass(frozen=True)
class Update:
    """The batches of one step of the optimizer.

    Attributes:
        num_items: the number of items in the batches of all processes; None if nothing uses it.
        epoch, first_batch: the epoch, and the number in it of the first of the batches, from 0.
    """

    batches: list[Any]
    num_items: Any
    epoch: int
    first_batch: int


class Position:
    """The position of a run.

    Args:
        state: has the step.
        meter: has the losses since the last log.
        source: gives the batches.
        ignores_data: True to begin the epoch of a resumed run again (`ignore_data_skip`).
        is_epoch_cut: returns True if a callback has ended the epoch.
        splits_batches: True if the run may train on fewer examples at a time than a batch has.

    Attributes:
        epoch, batches: the epoch, and its batches consumed so far, the current update included.
        epoch_has_ended: True between the end of an epoch and the begin of the next.
        loader_has_ended: True if an epoch of unknown length ended because the loader gave no more batches.
        postponed: the actions ("evaluate", "save", "stop") that were due when a signal or crash interrupted the run.
        examples_at_a_time: the examples that fit into memory if batches were halved, else None.
        grad_norm, learning_rate: gradient norm and learning rate of the last update, for the log at an epoch's end.
        first_step: the step after which this run began or resumed.
    """

    def __init__(
        self,
        plan: StepPlan,
        state: TrainerState,
        meter: LossMeter,
        source: BatchSource,
        *,
        ignores_data: bool = False,
        is_epoch_cut: Callable[[], bool] = lambda: False,
        splits_batches: bool = False,
        examples_at_a_time: int | None = None,
    ) -> None:
        self.plan, self.state, self.meter, self.source = plan, state, meter, source
        self.splits_batches, self.examples_at_a_time = splits_batches, examples_at_a_time
        self._ignores_data, self._is_epoch_cut = ignores_data, is_epoch_cut
        self.epoch, self.batches, self.epoch_has_ended, self.loader_has_ended = 0, 0, True, False
        self._load_place({})
        self._is_within_resumed_epoch = False

    # Epochs and updates

    def epochs(self) -> Iterator[int]:
        """Yields the epochs that are left, the one under way first, and moves to the beginning of each other."""
        for epoch in range(self.epoch, self.plan.epochs):
            if epoch != self.epoch:
                self.epoch, self.batches = epoch, 0
            yield epoch

    @contextlib.contextmanager
    def beginning_epoch(self) -> Iterator[None]:
        """Begins the epoch.

        If the epoch began before the resume, random numbers that callbacks draw here are undone.
        """
        with self.rng_restored_if_resumed() if self._is_within_resumed_epoch else contextlib.nullcontext():
            yield
        self.epoch_has_ended = self._is_within_resumed_epoch = False
        if self._ignores_data:
            self.batches = 0

    def has_updates_left(self) -> bool:
        """Returns True if the epoch has another update, as far as its length is known."""
        # a loader may give more batches than its length said when the run began, such as one of a dataset that grows
        last = self.plan.batches_per_epoch or sys.maxsize
        return self.state.global_step < self.plan.max_steps and self.batches < last

    def begin_pass(self, count: int) -> Iterator[Any]:
        """Returns the batches that are left in the epoch. The next update takes `count` of them."""
        return self.source.begin_pass(self.epoch, self.batches, count)

    def advance(self, batches: list[Any], num_items: Any) -> Update | None:
        """Moves on by an update with these batches, and returns it; None if the loader has given no more."""
        self.loader_has_ended = not batches
        if not batches:
            return None
        update = Update(batches, num_items, self.epoch, self.batches)
        self.batches += len(batches)
        return update

    def withdraw_epoch(self) -> None:
        """Moves back to the end of the epoch before this one, whose first batch could not be loaded."""
        self.epoch_has_ended = True
        self.source.restore_epoch_start()

    @property
    def progress(self) -> float:
        """Returns the completed epochs, as a fraction."""
        return self.plan.progress(self.epoch, self.batches)

    def rng_restored_if_resumed(self) -> contextlib.AbstractContextManager[None]:
        """In a resumed run, callbacks are called here a second time; afterwards the generators are put back."""
        return self.source.rng_restored_if_resumed()

    # Saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint holds beside its step: "loop" for loop_state.json, and "rng" for rng_state.pth.

        Reads losses and norm from the device.
        """
        return {
            "loop": {
                **self.meter.state_dict(self.grad_norm),
                "learning_rate": None if self.learning_rate is None else float(self.learning_rate),
                "epoch_has_ended": self.epoch_has_ended,
                "loader_has_ended": self.loader_has_ended,
                "epoch": self.epoch,
                "batches": self.batches,
                "accumulation": self.plan.accumulation,
                "batches_per_epoch": self.plan.batches_per_epoch,
                "epoch_is_cut": self._is_epoch_cut(),
                "postponed": self.postponed,
                **({EXAMPLES_AT_A_TIME: self.examples_at_a_time} if self.splits_batches else {}),
            },
            "rng": self.rng_state(),
        }

    def rng_state(self) -> dict[str, Any]:
        """Returns the states of the generators now, and those that loading drew from."""
        return self.source.state_dict()

    def load_state_dict(self, saved: dict[str, Any], load_rng: Callable[[], None] | None = None) -> None:
        """Continues after `state.global_step`.

        Args:
            saved: what `state_dict` returned. "loop" is {}, and "rng" None, for a checkpoint without them.
            load_rng: an override that sets the random states instead.
        """
        self._load_place(saved["loop"])
        self._is_within_resumed_epoch = self.batches > 0
        self.source.load_state_dict(saved["rng"], load_rng)

    def _load_place(self, saved: dict[str, Any]) -> None:
        step = self.first_step = self.state.global_step
        if "epoch" not in saved:  # a new run, or a checkpoint of transformers
            self.epoch, self.batches = self.plan.position_after(step)
        elif self.plan.batches_per_epoch is None:
            self.epoch, self.batches = self._place_in_stream(saved)
        else:
            self.epoch, self.batches = self._place_in_known_epoch(saved)
        self.epoch_has_ended = saved.get("epoch_has_ended", True)
        self.postponed: list[str] = list(saved.get("postponed", []))
        self.grad_norm: torch.Tensor | float | None = saved.get("grad_norm")
        self.learning_rate: float | None = saved.get("learning_rate")
        self.meter.reset(step)
        if saved:
            self.meter.load_state_dict(saved)

    def _place_in_stream(self, saved: dict[str, Any]) -> tuple[int, int]:
        """Returns the saved epoch and batch of a stream of unknown length, where the step does not tell them."""
        epoch, batches = saved["epoch"], saved["batches"]
        # max_steps or a callback may have ended the epoch before the stream did
        is_over = saved["epoch_has_ended"] and saved.get("loader_has_ended", True)
        if batches and (is_over or saved.get("epoch_is_cut", False)):
            return epoch + 1, 0
        accumulation = saved.get("accumulation", self.plan.accumulation)
        if accumulation != self.plan.accumulation:
            batches = -(-batches // accumulation) * self.plan.accumulation  # keeps the number of updates
        return epoch, batches

    def _place_in_known_epoch(self, saved: dict[str, Any]) -> tuple[int, int]:
        """Returns the epoch and batch in epochs of known length, computed from the step if the sizes have changed.

        Otherwise the saved ones, because the length may be wrong, and a callback may cut epochs or change the
        accumulation.
        """
        epoch, batches, known = saved["epoch"], saved["batches"], self.plan.batches_per_epoch
        is_same_accumulation = saved.get("accumulation", self.plan.accumulation) == self.plan.accumulation
        if self._ignores_data or not is_same_accumulation or saved.get("batches_per_epoch") != known:
            return self.plan.position_after(self.state.global_step)
        if batches and (batches == known or saved.get("epoch_is_cut", False)):
            return epoch + 1, 0
        return epoch, batches

    # Undoing an update or an evaluation

    def snapshot(self, before_loading: bool = False) -> dict[str, Any]:
        """Returns the position, and what is logged and counted with it, for `restore`. Reads nothing from the device.

        Args:
            before_loading: True before the batches of an update are loaded; `restore` then ends the pass over the
                loader, so that these batches are loaded again.
        """
        has_ended = not self.batches if before_loading else self.epoch_has_ended
        return {
            "place": (self.epoch, self.batches, has_ended, self.loader_has_ended),
            "tokens": self.state.num_input_tokens_seen,
            "logs": len(self.state.log_history),
            "meter": self.meter.snapshot(),
            "rng": self.source.snapshot(with_loading=before_loading),
            "before_loading": before_loading,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Returns to what `snapshot` returned."""
        self.source.restore(saved["rng"], with_loading=saved["before_loading"])
        self.epoch, self.batches, self.epoch_has_ended, self.loader_has_ended = saved["place"]
        self.state.num_input_tokens_seen = saved["tokens"]
        del self.state.log_history[saved["logs"] :]  # in place, because a callback may hold the list
        self.meter.restore(saved["meter"])
