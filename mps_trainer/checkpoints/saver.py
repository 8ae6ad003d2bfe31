"""Saves the checkpoints of a Trainer: collects what they hold, and calls methods and callbacks around a save.

A save goes through these calls:

1. `Trainer._maybe_log_save_evaluate` if a callback requested it, or `CheckpointSaver.save_through_trainer` after a
   signal or a loss that is not finite, calls
2. `Trainer._save_checkpoint`, which calls
3. `CheckpointSaver.write`, which collects what the checkpoint holds, and calls
4. `Checkpoints.write`, which gathers what all processes have a part of, chooses the writer, and calls
5. `Checkpoints._write_and_commit`, at once or in a thread. It writes the files, renames the folder, and removes old
   checkpoints. If other code overrides a method that writes, its writer is `TrainerMethods`, which calls
   `Trainer.save_model` and the like.

Then 1 calls `fire_on_save`. on_checkpoint_complete is fired there, or by `poll` or `wait` after a thread has ended.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from torch import nn
from transformers.trainer_callback import TrainerControl, TrainerState

from ..distributed import Processes
from ..model.precision import MixedPrecision
from ..overrides import Overrides
from . import folders, manifest
from .checkpoints import Checkpoints, SaveResult
from .loading import OPTIMIZER, POSITION, SCALER, SCHEDULER, Stateful
from .rng import RandomStatesOnly
from .trainer_methods import TrainerMethods, WritingTrainer
from .writers import Save, can_write_copy, processor_to_save, writes_shards

logger = logging.getLogger(__name__)


class SavingTrainer(WritingTrainer, Protocol):
    """Names what saving needs of a Trainer beside the methods that write, in transformers' names."""

    model: Any
    optimizer: Any
    lr_scheduler: Any
    processing_class: Any
    data_collator: Any
    state: TrainerState
    control: TrainerControl
    _mt_checkpoints: Checkpoints
    _mt_overrides: Overrides
    _mt_precision: MixedPrecision
    _mt_processes: Processes
    _mt_run: Any  # the run under way, None for a checkpoint that is saved by hand

    @property
    def _mt_events(self) -> Any: ...  # callbacks' Events

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None: ...
    def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...


class CheckpointSaver:
    """Saves checkpoints of a Trainer. Made for a call or a run: the Trainer does not keep it.

    A checkpoint that is written at once is complete before on_save is called, and on_checkpoint_complete follows. One
    that is written in the background is not complete at on_save. A later step finds that it is, and calls
    on_checkpoint_complete.
    """

    def __init__(self, trainer: SavingTrainer) -> None:
        self._trainer = trainer

    @property
    def _checkpoints(self) -> Checkpoints:
        return self._trainer._mt_checkpoints  # a checkpoint that is saved by hand may go elsewhere

    def save_through_trainer(self) -> None:
        """Saves the current step by `Trainer._save_checkpoint`, and calls on_save. All processes must call it."""
        self._trainer._save_checkpoint(self._trainer._mt_run.model, self._trainer._mt_run.trial)
        self.fire_on_save()

    def save_again(self) -> None:
        """Saves the checkpoint once more if the last one was not written: the disk may have room again."""
        self.wait()
        if self._trainer._mt_processes.all_reduce_max([self._checkpoints.unsaved is not None])[0]:
            self._trainer._save_checkpoint(self._trainer._mt_run.model, self._trainer._mt_run.trial)
            self.wait()
            self.fire_on_save()
        self._fire_complete()  # an override's save may not have called on_save

    def poll(self) -> None:
        """Notes that the checkpoint in the background is written; raises its error. Does not wait for it."""
        if self._checkpoints.is_written():
            self.wait()
        self._fire_complete()

    def wait(self) -> None:
        """Waits for the checkpoint in the background and raises its error, once."""
        if (result := self._checkpoints.wait()) is not None:
            self._note_result(result)
            self._fire_complete()

    def fire_on_save(self) -> None:
        """Calls on_save, unless the save failed. A callback may add or change files of the checkpoint."""
        trainer, events = self._trainer, self._trainer._mt_events
        if self._checkpoints.unsaved is not None:
            trainer.control.should_save = False
            return
        events.note("checkpoint")
        events.fire("on_save")
        if trainer.args.should_save and events.has_listener("on_save"):
            folder = folders.checkpoint_folder(self._checkpoints.run_dir, trainer.state.global_step)
            try:
                manifest.renew(folder, trainer.state.global_step)
            except OSError as error:
                logger.error(
                    "%s was changed, and its %s could not be: %s.", folder, manifest.NAME, error.strerror or error
                )
        self._fire_complete()

    def write(self) -> None:
        """Writes the checkpoint of the current step, in the background where that is safe. All processes must call it.

        If it cannot be written, training continues, and `Checkpoints.unsaved` says why.
        """
        self.wait()
        trainer, state = self._trainer, self._trainer.state
        if trainer.args.should_save:
            state.stateful_callbacks = trainer._mt_events.stateful_callbacks()
        overrides = Overrides.of(trainer)  # a callback may have patched a method since the run began
        save = Save(
            state=state,
            model=trainer.model,
            stateful={} if trainer.args.save_only_model else self._stateful(),
            args=trainer.args,
            processor=processor_to_save(trainer.processing_class, trainer.data_collator),
            processes=trainer._mt_processes,
            methods=TrainerMethods(trainer) if overrides.write_checkpoints else None,
            in_run=trainer._mt_run is not None,
            in_background=trainer.args.should_save and self._may_write_in_background(overrides),
        )
        if (result := self._checkpoints.write(save)) is not None:
            self._note_result(result)

    def _stateful(self) -> dict[str, Stateful]:
        """Returns what a checkpoint holds beside the model; see `Save.stateful`."""
        trainer, run = self._trainer, self._trainer._mt_run
        found: dict[str, Stateful] = {OPTIMIZER: trainer.optimizer, SCHEDULER: trainer.lr_scheduler}
        if trainer._mt_precision.scaler is not None:
            found[SCALER] = trainer._mt_precision.scaler
        return {**found, POSITION: RandomStatesOnly() if run is None else run.position}

    def _may_write_in_background(self, overrides: Overrides) -> bool:
        """Returns True if a copy can be written while training goes on.

        It cannot if the checkpoint is saved by hand, nor if the user's code takes part in writing it or expects its
        files at on_save.
        """
        trainer, events = self._trainer, self._trainer._mt_events
        if trainer._mt_run is None or overrides.write_checkpoints or events.has_listener("on_save"):
            return False
        # an upload begins when the checkpoint is complete, which may be a step later
        if trainer.args.push_to_hub and (overrides.push_from_checkpoint or events.has_listener("on_push_begin")):
            return False
        return can_write_copy(trainer.model, trainer.optimizer, trainer.args)

    def _note_result(self, result: SaveResult) -> None:
        """Uploads a checkpoint that was written, and shows the error of one that was not in the report."""
        trainer = self._trainer
        self._checkpoints.note_result(result, trainer.state)
        if result.error is not None:
            trainer._mt_events.note("fault", self._checkpoints.unsaved)
        elif trainer.args.push_to_hub and not writes_shards(trainer.model, trainer.args):
            trainer._push_from_checkpoint(result.folder)

    def _fire_complete(self) -> None:
        """Calls on_checkpoint_complete for a checkpoint that is on disk, once."""
        checkpoints = self._checkpoints
        folder, checkpoints.unannounced = checkpoints.unannounced, None
        if folder is not None and self._trainer.args.should_save:
            self._trainer._mt_events.fire("on_checkpoint_complete", checkpoint=checkpoints.user_path(folder))
