"""The Trainer's methods that write models and checkpoints, and read them again. A subclass may override each."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.trainer_callback import TrainerState

from ..checkpoints import folders, manifest
from ..checkpoints.background import Background
from ..checkpoints.manager import CheckpointManager, Writer
from ..checkpoints.rng import file_of, read_rng
from ..checkpoints.weights import WEIGHTS
from ..distributed.sharded import is_sharded
from ..random_state import rng_state, set_rng
from . import checkpoint, model_files
from .checkpoint import OPTIMIZER, SCALER, SCHEDULER
from .gathered import full_state_dict
from .resuming import Resuming
from .sharded_saving import each_writes, gather, sharded_writer
from .snapshot import background_writer, copy_of_state, may_write_in_background

logger = logging.getLogger(__name__)

WRITERS = (  # where they are the Trainer's own, `background_writer` writes what they do
    "_save_checkpoint",
    "save_model",
    "_save",
    "_save_optimizer_and_scheduler",
    "_save_scaler",
    "_save_rng_state",
    "_rotate_checkpoints",
)


class Saving(Resuming):
    """What is saved when the loop or the user asks for it; checkpoint.py and model_files.py write the files."""

    _mt_everybodys_rng: list[dict[str, Any]]  # of the processes, when the last checkpoint was due
    _mt_gathered: Mapping[str, Any] = {}  # files of a sharded model, while a checkpoint is written

    if TYPE_CHECKING:  # other parts of the Trainer have them
        _trial: Any

        def _get_output_dir(self, trial: Any) -> str: ...
        def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...

        push_to_hub: Any

        def store_flos(self) -> None: ...

    @functools.cached_property
    def _mt_checkpoint_manager(self) -> CheckpointManager:
        return CheckpointManager(self._mt_savable_logs.save)

    @functools.cached_property
    def _mt_background(self) -> Background:
        """Where checkpoints are written while training goes on."""
        return self._mt_checkpoint_manager.background

    @property
    def _mt_unsaved(self) -> str | None:
        """The reason why the last checkpoint was not saved, None if it was."""
        return self._mt_checkpoint_manager.unsaved

    # The model

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes weights (safetensors), configuration, tokenizer and arguments to `output_dir`, or the run's.

        Uploads them with `push_to_hub=True`, unless it is a part of a checkpoint. A sharded model is gathered for it,
        so that all processes have to call it.
        """
        weights = self._mt_gathered.get(WEIGHTS)
        if weights is None and is_sharded(self.model):
            weights = full_state_dict(self.model, keep=self.args.should_save)
        given = {} if weights is None else {"state_dict": weights}
        self._save(self.args.output_dir if output_dir is None else output_dir, **given)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Writes the files of `save_model`; with `state_dict`, those weights instead of the model's."""
        if self.args.should_save:
            folder = self.args.output_dir if output_dir is None else output_dir
            model_files.save(self.model, self._mt_tokenizer_to_save, self.args, folder, state_dict)

    @property
    def _mt_tokenizer_to_save(self) -> Any:
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
        state.best_model_checkpoint = self._mt_processes.first_does(lambda: state.best_model_checkpoint)
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

        Where it is safe the files are written while training goes on; where the disk does not take them, training goes
        on as well, see `require_saved`.
        """
        self._mt_note_rng()
        self.store_flos()
        together = each_writes(self.model, self.args)
        if is_sharded(self.model) and not together:
            optimizer = None if self.args.save_only_model else self.optimizer
            self._mt_gathered = gather(self.model, optimizer, keep=self.args.should_save)
        try:
            if together or self.args.should_save:
                self._mt_save_files(trial, together)
        finally:
            self._mt_gathered = {}

    def _mt_save_files(self, trial: Any, together: bool) -> None:
        """Writes the files of a checkpoint; all processes have to call it if they write it `together`."""
        self._mt_finish_save()
        run_dir, best_before = self._get_output_dir(trial), self.state.best_model_checkpoint
        folder = folders.checkpoint_folder(run_dir, self.state.global_step)
        if self.args.should_save:
            checkpoint.note_best(self.state, folder, self._mt_earlier_checkpoints)
            self.state.stateful_callbacks = self._mt_new_state().stateful_callbacks
        state, writer = self.state, Writer(self._mt_write_checkpoint)
        rotate = functools.partial(self._rotate_checkpoints, output_dir=run_dir)
        parts = {} if self.args.save_only_model else self._mt_checkpoint_parts()
        if together:
            rest = (self._save_scaler, self._save_rng_state)
            writer = sharded_writer(self.model, self._mt_tokenizer_to_save, self.args, parts, rest, self._mt_processes)
        elif self._mt_may_save_in_background():
            rng = self._mt_rng_files() if parts else {}
            writer = background_writer(self.model, self._mt_tokenizer_to_save, self.args, {**parts, **rng})
            state = copy_of_state(state)
            rotate = functools.partial(rotate, state=state)
        on_unsaved = functools.partial(self._mt_note_unsaved, folder, best_before)
        self._mt_checkpoint_manager.save(run_dir, state, writer, rotate, on_unsaved)
        if self.args.push_to_hub and not together and self._mt_unsaved is None:
            self._push_from_checkpoint(folder)

    def _mt_write_checkpoint(self, folder: str) -> None:
        """Writes a checkpoint's files by the methods that a subclass may override."""
        self.save_model(folder, _internal_call=True)
        os.makedirs(folder, exist_ok=True)  # an override may remove what it does not know
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(folder)
            self._save_scaler(folder)
            self._save_rng_state(folder)

    def _mt_may_save_in_background(self) -> bool:
        if self._mt_run is None or self.is_fsdp_enabled:  # saved by hand; or gathered from all processes
            return False
        return may_write_in_background(
            self.args,
            self.model,
            self.optimizer,
            writers_overridden=self._mt_overrides.has(*WRITERS),
            has_save_listener=self._mt_events.has_listener("on_save"),
        )

    def _mt_note_unsaved(self, folder: str, best_before: str | None) -> None:
        """Takes back that the checkpoint `folder`, which was not saved, is the best; notes it in the report."""
        if self.state.best_model_checkpoint == folder and not os.path.isdir(folder):
            self.state.best_model_checkpoint = best_before
        self._mt_events.note("fault", self._mt_unsaved or "")

    def _mt_finish_save(self) -> None:
        """Waits for the checkpoint that is being written; raises what went wrong with it."""
        self._mt_background.wait()

    def _mt_tell_saved(self, trial: Any) -> None:
        """Fires on_save; a callback may add to the checkpoint, or change what is in it. Not if it was not saved."""
        if self._mt_unsaved is not None:
            self.control.should_save = False
            return
        self._mt_events.note("checkpoint")
        self._mt_fire("on_save")
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

    def _mt_save_again(self, trial: Any) -> None:
        """At the end of a run whose last checkpoint could not be saved: tries once more, there may be room again."""
        self._mt_finish_save()
        if self._mt_processes.all_reduce_max([self._mt_unsaved is not None])[0]:
            self._save_checkpoint(self.model, trial)
            self._mt_finish_save()
            self._mt_tell_saved(trial)

    def _mt_require_saved(self) -> None:
        """Raises CheckpointError if the last checkpoint of the run could not be saved."""
        self._mt_checkpoint_manager.require_saved()

    def _mt_checkpoint_parts(self, *names: str) -> dict[str, Any]:
        """Returns optimizer, schedule and scaler by the names of their files, or those of them in `names`."""
        parts = {OPTIMIZER: self._mt_gathered.get(OPTIMIZER, self.optimizer), SCHEDULER: self.lr_scheduler}
        if self._mt_precision.scaler is not None:
            parts[SCALER] = self._mt_precision.scaler
        return {name: part for name, part in parts.items() if not names or name in names}

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        checkpoint.save_parts(self._mt_checkpoint_parts(OPTIMIZER, SCHEDULER), output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        if checkpoint_folder is not None:
            checkpoint.restore_parts(self._mt_checkpoint_parts(OPTIMIZER, SCHEDULER), checkpoint_folder)

    def _save_scaler(self, output_dir: str) -> None:
        checkpoint.save_parts(self._mt_checkpoint_parts(SCALER), output_dir)

    def _load_scaler(self, checkpoint_folder: str | None) -> None:
        if checkpoint_folder is not None:
            checkpoint.restore_parts(self._mt_checkpoint_parts(SCALER), checkpoint_folder)

    def _save_rng_state(self, output_dir: str) -> None:
        checkpoint.save_parts(self._mt_rng_files(), output_dir)

    def _mt_rng_and_position(self) -> dict[str, Any]:
        """Returns where this process's generators and its loop stand."""
        run = self._mt_run
        position = {} if run is None else {**run.data_rng.state_dict(), checkpoint.LOOP: run.state_dict()}
        return {**rng_state(), **position}

    def _mt_note_rng(self) -> None:
        """Tells all processes where the generators of each stand, before the first one writes their files."""
        if self._mt_processes.is_distributed and not self.args.save_only_model:
            self._mt_everybodys_rng = self._mt_processes.gather(self._mt_rng_and_position())

    def _mt_rng_files(self) -> dict[str, dict[str, Any]]:
        """Returns where the generators of all processes stand, by the names of their files."""
        several = self._mt_processes.is_distributed
        everybodys = self._mt_everybodys_rng if several else [self._mt_rng_and_position()]
        return {file_of(rank, self._mt_processes.size): state for rank, state in enumerate(everybodys)}

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        """Sets the generators to where they were when the checkpoint was made, if it says so."""
        processes = self._mt_processes
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
        if self._mt_run is not None:
            newest = [folders.checkpoint_folder(run_dir, state.global_step)]
        self._mt_earlier_checkpoints.difference_update(newest)
        if self.args.overwrite_output_dir:
            for old in self._mt_earlier_checkpoints:
                folders.remove(old)
            self._mt_earlier_checkpoints.clear()
        kept = {*newest, state.best_model_checkpoint}
        folders.rotate(run_dir, self.args.save_total_limit, kept, self._mt_earlier_checkpoints)

    def _mt_keep_only_the_best(self) -> None:
        """Removes the last checkpoint after a run that was to keep one, if the best is another one in its folder."""
        best, run_dir = self.state.best_model_checkpoint, self._get_output_dir(self._trial)
        is_own = best is not None and os.path.realpath(os.path.dirname(best)) == os.path.realpath(run_dir)
        if self.args.should_save and is_own and self.args.save_total_limit == 1:
            folders.rotate(run_dir, 1, {best}, self._mt_earlier_checkpoints)
