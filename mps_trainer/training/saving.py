"""The Trainer's methods that write models and checkpoints, and read them again. A subclass may override each."""

from __future__ import annotations

import copy
import functools
import logging
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.trainer_callback import TrainerState

from ..checkpoints import folders, manifest
from ..checkpoints.background import Background
from ..checkpoints.rng import FILE as RNG_FILE
from ..checkpoints.rng import file_of, read_rng, set_rng
from ..checkpoints.sealing import seal, why_not_written
from ..distributed.sharded import is_sharded
from ..errors import CheckpointError
from . import checkpoint, model_files
from .gathered import whole_weights
from .resuming import Resuming
from .sharded_saving import Gathered, each_writes, write_together
from .snapshot import Snapshot, may_be_taken

logger = logging.getLogger(__name__)


class Saving(Resuming):
    """What is saved when the loop or the user asks for it; checkpoint.py and model_files.py write the files."""

    unsaved: str | None = None  # what became of the last checkpoint, if the disk did not take it
    _everybodys_rng: list[dict[str, Any]]  # of the processes, when the last checkpoint was due
    _gathered: Gathered | None = None  # of a sharded model, while a checkpoint is written

    if TYPE_CHECKING:  # other parts of the Trainer have them
        _trial: Any

        def _get_output_dir(self, trial: Any) -> str: ...
        def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...

        push_to_hub: Any

        def store_flos(self) -> None: ...

    @functools.cached_property
    def background(self) -> Background:
        """Where checkpoints are written while training goes on."""
        return Background()

    # The model

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes weights (safetensors), configuration, tokenizer and arguments to `output_dir`, or the run's.

        Uploads them with `push_to_hub=True`, unless it is a part of a checkpoint. A sharded model is gathered for it,
        so that all processes have to call it.
        """
        gathered: dict[str, Any] = {}
        if self._gathered is not None:
            gathered = {"state_dict": self._gathered.weights}
        elif is_sharded(self.model):
            gathered = {"state_dict": whole_weights(self.model, keep=self.args.should_save)}
        self._save(self.args.output_dir if output_dir is None else output_dir, **gathered)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Writes the files of `save_model`; with `state_dict`, those weights instead of the model's."""
        if self.args.should_save:
            folder = self.args.output_dir if output_dir is None else output_dir
            model_files.save(self.model, self.tokenizer_to_save, self.args, folder, state_dict)

    @property
    def tokenizer_to_save(self) -> Any:
        """The tokenizer or processor that goes with the model, or None."""
        if self.processing_class is not None:
            return self.processing_class
        return getattr(self.data_collator, "tokenizer", None)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Loads a checkpoint's weights, or PEFT adapters, into `model`, by default the Trainer's."""
        model_files.load_weights(self.model if model is None else model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        """Goes back to the weights of the best checkpoint; says so if the best evaluation has none."""
        state = self.state
        state.best_model_checkpoint = self.processes.first_does(lambda: state.best_model_checkpoint)
        if self.state.best_model_checkpoint is None:
            logger.warning(
                "load_best_model_at_end: the best evaluation, at step %s, has no checkpoint: the last weights stay. "
                "Give save_steps the value of eval_steps, or use save_strategy='best'.",
                self.state.best_global_step,
            )
        else:
            model_files.load_weights(self.model, self.state.best_model_checkpoint)

    # Checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes `checkpoint-<step>` into the run's folder and removes those beyond the limit.

        The files are written to a folder beside it, which then takes the name: a checkpoint that exists is whole.
        Where it is safe they are written while training goes on; where the disk does not take them, training goes on
        as well, see `_tell_unsaved`.
        """
        self._note_rng()
        self.store_flos()
        together = each_writes(self)
        self._gathered = Gathered.by(self) if is_sharded(self.model) and not together else None
        try:
            if together or self.args.should_save:
                self._save_files(trial, together)
        finally:
            self._gathered = None

    def _save_files(self, trial: Any, together: bool) -> None:
        """The files of a checkpoint, of all processes if they write it `together`."""
        self.finish_save()
        step, run_dir = self.state.global_step, self._get_output_dir(trial)
        folder = folders.checkpoint_folder(run_dir, step)
        unfinished = folders.unfinished_folder(run_dir, step)
        best_before = self.state.best_model_checkpoint
        if self.args.should_save:
            checkpoint.note_best(self.state, folder, self.earlier_checkpoints)
            self.state.stateful_callbacks = self.new_state().stateful_callbacks
        rotate = functools.partial(self._rotate_checkpoints, output_dir=run_dir)
        if together:
            why = write_together(self, unfinished, folder, step)
            if self.args.should_save:
                self._conclude(folder, why, best_before, rotate)
            return
        in_background = may_be_taken(self, own=Saving)
        write: Callable[[str], None]
        if in_background:
            write = Snapshot.take(self).write
            rotate = functools.partial(rotate, state=copy.copy(self.state))
        else:
            write = self._write_checkpoint

        def save() -> None:
            why = None
            try:
                shutil.rmtree(unfinished, ignore_errors=True)
                os.makedirs(unfinished)
                write(unfinished)
                seal(unfinished, folder, step)
            except Exception as error:
                why = why_not_written(error, unfinished)  # asks the disk while it is as full as it was
                shutil.rmtree(unfinished, ignore_errors=True)
                if why is None:
                    raise
            self._conclude(folder, why, best_before, rotate)

        if in_background:
            self.background.start(save)
            return
        save()
        if self.args.push_to_hub and self.unsaved is None:
            self._push_from_checkpoint(folder)

    def _conclude(self, folder: str, why: str | None, best_before: str | None, rotate: Callable[[], None]) -> None:
        """What follows a checkpoint that was saved, or, where there is a reason `why`, was not."""
        if why is not None:
            self._tell_unsaved(folder, why, best_before)
            return
        self.unsaved = None
        rotate()

    def _write_checkpoint(self, folder: str) -> None:
        """Writes a checkpoint's files by the methods that a subclass may override."""
        self.save_model(folder, _internal_call=True)
        os.makedirs(folder, exist_ok=True)  # an override may remove what it does not know
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(folder)
            self._save_scaler(folder)
            self._save_rng_state(folder)
        self.savable_logs.save(self.state, os.path.join(folder, folders.STATE))

    def finish_save(self) -> None:
        """Waits for the checkpoint that is being written; raises what went wrong with it."""
        self.background.wait()

    def tell_saved(self, trial: Any) -> None:
        """Fires on_save; a callback may add to the checkpoint, or change what is in it. Not if it was not saved."""
        if self.unsaved is not None:
            self.control.should_save = False
            return
        self._mt_events.note("checkpoint")
        self.fire("on_save")
        if not self.args.should_save or not self._mt_events.has_listener("on_save"):
            return
        step = self.state.global_step
        folder = folders.checkpoint_folder(self._get_output_dir(trial), step)
        try:
            manifest.renew(folder, step)
        except OSError as error:
            logger.error(
                "%s was changed, and its %s could not be: %s.", folder, manifest.NAME, error.strerror or error
            )

    def _tell_unsaved(self, folder: str, why: str, best_before: str | None) -> None:
        """Training goes on without this checkpoint, and remembers it: see `require_saved`."""
        whole = folders.find_checkpoints(os.path.dirname(folder))
        left = f"The last one is {whole[-1]}." if whole else "There is none."
        logger.error(
            "%s could not be saved: %s. %s Training goes on; make room or give permission before the next one is due.",
            folder, why, left,
        )  # fmt: skip
        if self.state.best_model_checkpoint == folder and not os.path.isdir(folder):
            self.state.best_model_checkpoint = best_before
        self.unsaved = f"{folder} could not be saved: {why}. {left}"
        self._mt_events.note("fault", self.unsaved)

    def save_again(self, trial: Any) -> None:
        """At the end of a run whose last checkpoint could not be saved: tries once more, there may be room again."""
        self.finish_save()
        if self.processes.highest([self.unsaved is not None])[0]:
            self._save_checkpoint(self.model, trial)
            self.finish_save()
            self.tell_saved(trial)

    def require_saved(self) -> None:
        """Raises CheckpointError if the last checkpoint of the run could not be saved."""
        if self.unsaved is not None:
            raise CheckpointError(
                f"Training has ended, but {self.unsaved} Make room or give permission, then save the model that is in "
                "memory with save_model(), or resume from the last checkpoint."
            )

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = None if self._gathered is None else self._gathered.optimizer
        checkpoint.save_part(self.optimizer, output_dir, checkpoint.OPTIMIZER, state)
        checkpoint.save_part(self.lr_scheduler, output_dir, checkpoint.SCHEDULER)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        if checkpoint_folder is not None:
            checkpoint.restore_part(self.optimizer, checkpoint_folder, checkpoint.OPTIMIZER)
            checkpoint.restore_part(self.lr_scheduler, checkpoint_folder, checkpoint.SCHEDULER)

    def _save_scaler(self, output_dir: str) -> None:
        if self.precision.scaler is not None:
            checkpoint.save_part(self.precision.scaler, output_dir, checkpoint.SCALER)

    def _load_scaler(self, checkpoint_folder: str | None) -> None:
        if checkpoint_folder is not None and self.precision.scaler is not None:
            checkpoint.restore_part(self.precision.scaler, checkpoint_folder, checkpoint.SCALER)

    def _save_rng_state(self, output_dir: str) -> None:
        for name, state in self.rng_files().items():
            torch.save(state, os.path.join(output_dir, name))

    def _note_rng(self) -> None:
        """Tells all processes where the generators of each stand, before the first one writes their files."""
        if self.processes.are_several and not self.args.save_only_model:
            self._everybodys_rng = self.processes.gather(checkpoint.rng_and_position(self.loop))

    def rng_files(self) -> dict[str, dict[str, Any]]:
        """What the files of the generators of all processes have, by their names."""
        if not self.processes.are_several:
            return {RNG_FILE: checkpoint.rng_and_position(self.loop)}
        return {file_of(rank, self.processes.size): state for rank, state in enumerate(self._everybodys_rng)}

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        """Sets the generators to where they were when the checkpoint was made, if it says so."""
        processes = self.processes
        state = None if checkpoint_folder is None else read_rng(checkpoint_folder, processes.rank, processes.size)
        if state is not None:
            set_rng(state)

    def _rotate_checkpoints(
        self, use_mtime: bool = False, output_dir: str | None = None, state: TrainerState | None = None
    ) -> None:
        """Removes an overwritten run's checkpoints, now that there is one of this run, and those beyond the limit.

        Args:
            use_mtime: no matter; checkpoints of an earlier run are known and the others have steps.
            output_dir: default the run's folder.
            state: of when the newest checkpoint was made; default that of now.
        """
        state = self.state if state is None else state
        run_dir = self._get_output_dir(self._trial) if output_dir is None else output_dir
        newest = folders.find_checkpoints(run_dir)[-1:]
        if self.loop is not None:
            newest = [folders.checkpoint_folder(run_dir, state.global_step)]
        self.earlier_checkpoints.difference_update(newest)
        if self.args.overwrite_output_dir:
            for old in self.earlier_checkpoints:
                folders.remove(old)
            self.earlier_checkpoints.clear()
        kept = {*newest, state.best_model_checkpoint}
        folders.rotate(run_dir, self.args.save_total_limit, kept, self.earlier_checkpoints)

    def keep_only_the_best(self) -> None:
        """Removes the last checkpoint after a run that was to keep one, if the best is another one in its folder."""
        best, run_dir = self.state.best_model_checkpoint, self._get_output_dir(self._trial)
        is_own = best is not None and os.path.realpath(os.path.dirname(best)) == os.path.realpath(run_dir)
        if self.args.should_save and is_own and self.args.save_total_limit == 1:
            folders.rotate(run_dir, 1, {best}, self.earlier_checkpoints)
