"""The Trainer's methods that write models and checkpoints, and read them again. A subclass may override each."""

from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.trainer_callback import ExportableState, TrainerControl, TrainerState

from ..checkpoints import folders
from ..checkpoints.files import read_object
from ..checkpoints.rng import read_rng, set_rng
from . import checkpoint, model_files
from .base import TrainerBase

logger = logging.getLogger(__name__)
of_transformers = logging.getLogger("transformers.trainer")  # for what its users look for under its name


class Saving(TrainerBase):
    """What is saved when the loop or the user asks for it; checkpoint.py and model_files.py write the files."""

    if TYPE_CHECKING:  # other parts of the Trainer have them
        _trial: Any

        def _get_output_dir(self, trial: Any) -> str: ...
        def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...

        push_to_hub: Any

        def store_flos(self) -> None: ...
        def _note_trial(self) -> None: ...

    # The model

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes weights (safetensors), configuration, tokenizer and arguments to `output_dir`, or the run's.

        Uploads them with `push_to_hub=True`, unless it is a part of a checkpoint.
        """
        self._save(self.args.output_dir if output_dir is None else output_dir)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Writes the files of `save_model`; with `state_dict`, those weights instead of the model's."""
        if self.args.should_save:
            tokenizer = self.processing_class
            if tokenizer is None:
                tokenizer = getattr(self.data_collator, "tokenizer", None)
            folder = self.args.output_dir if output_dir is None else output_dir
            model_files.save(self.model, tokenizer, self.args, folder, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Loads a checkpoint's weights, or PEFT adapters, into `model`, by default the Trainer's."""
        model_files.load_weights(self.model if model is None else model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        """Goes back to the weights of the best checkpoint; says so if the best evaluation has none."""
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
        """
        args, step = self.args, self.state.global_step
        run_dir = self._get_output_dir(trial)
        folder = folders.checkpoint_folder(run_dir, step)
        if not args.should_save:
            return
        unfinished = os.path.join(run_dir, f"tmp-checkpoint-{step}")
        shutil.rmtree(unfinished, ignore_errors=True)
        self.store_flos()
        self.save_model(unfinished, _internal_call=True)
        os.makedirs(unfinished, exist_ok=True)  # an override may write nothing
        checkpoint.note_best(self.state, folder, self.earlier_checkpoints)
        if not args.save_only_model:
            self._save_optimizer_and_scheduler(unfinished)
            self._save_scaler(unfinished)
            self._save_rng_state(unfinished)
        self.state.stateful_callbacks = self.new_state().stateful_callbacks
        self.state.save_to_json(os.path.join(unfinished, folders.STATE))
        folders.put_in_place(unfinished, folder)
        if args.push_to_hub:
            self._push_from_checkpoint(folder)
        self._rotate_checkpoints(output_dir=run_dir)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        checkpoint.save_part(self.optimizer, output_dir, checkpoint.OPTIMIZER)
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
        checkpoint.save_rng(output_dir, self.loop)

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        """Sets the generators to where they were when the checkpoint was made, if it says so."""
        state = None if checkpoint_folder is None else read_rng(checkpoint_folder)
        if state is not None:
            set_rng(state)

    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None:
        """Removes an overwritten run's checkpoints, now that there is one of this run, and those beyond the limit.

        Args:
            use_mtime: no matter; checkpoints of an earlier run are known and the others have steps.
            output_dir: default the run's folder.
        """
        run_dir = self._get_output_dir(self._trial) if output_dir is None else output_dir
        newest = folders.find_checkpoints(run_dir)[-1:]
        if self.loop is not None:
            newest = [folders.checkpoint_folder(run_dir, self.state.global_step)]
        self.earlier_checkpoints.difference_update(newest)
        if self.args.overwrite_output_dir:
            for old in self.earlier_checkpoints:
                shutil.rmtree(old, ignore_errors=True)
            self.earlier_checkpoints.clear()
        kept = {*newest, self.state.best_model_checkpoint}
        folders.rotate(run_dir, self.args.save_total_limit, kept, self.earlier_checkpoints)

    def keep_only_the_best(self) -> None:
        """After a run that was to keep one checkpoint: the best one, not the last one beside it."""
        best = self.state.best_model_checkpoint
        if self.args.should_save and best is not None and self.args.save_total_limit == 1:
            folders.rotate(os.path.dirname(best), 1, {best}, self.earlier_checkpoints)

    # The state

    def begin_state(self, max_steps: int, epochs: int, resume_from: str | None, trial: Any = None) -> None:
        """Makes `state` that of a run about to begin, or of the checkpoint it goes on from."""
        self.state = self.new_state()
        if resume_from is not None:
            self._go_on_from(resume_from)
        state, run_dir = self.state, self._get_output_dir(trial)
        self.earlier_checkpoints = set() if resume_from else set(folders.find_checkpoints(run_dir))
        state.max_steps, state.num_train_epochs = max_steps, epochs
        state.is_local_process_zero = self.is_local_process_zero()
        state.is_world_process_zero = self.is_world_process_zero()
        state.train_batch_size = self.examples_at_a_time or self._train_batch_size
        state.compute_steps(self.args, max_steps)
        self._note_trial()
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    def _go_on_from(self, folder: str) -> None:
        """Makes `state` that of a checkpoint; warns of arguments that have changed, and of what is gone."""
        saved = read_object(os.path.join(folder, folders.STATE), ["global_step", "epoch", "log_history"])
        known = {name: value for name, value in saved.items() if hasattr(self.state, name)}
        callbacks = known.pop("stateful_callbacks", None) or {}
        self.state = TrainerState(**{**known, "stateful_callbacks": None})
        best = self.state.best_model_checkpoint
        if best is not None and not os.path.isdir(best):
            logger.warning("The best checkpoint, %s, does not exist any more: the next best takes its place.", best)
            self.state.best_model_checkpoint = None
        try:
            from transformers.trainer_utils import compare_trainer_and_checkpoint_args
        except ImportError:  # a method of transformers' Trainer in the first releases of 5
            pass
        else:
            # auto_find_batch_size has its own way to go on with another size
            if self.state.train_batch_size is not None and not self.args.auto_find_batch_size:
                compare_trainer_and_checkpoint_args(self.args, self.state)
        self.state.stateful_callbacks = callbacks
        self._load_callback_state()
        self.state.stateful_callbacks = self.new_state().stateful_callbacks

    def _load_callback_state(self) -> None:
        """Gives callbacks the state that `state.stateful_callbacks` has of them, if the arguments ask for it."""
        if not self.args.restore_callback_states_from_checkpoint:
            return
        present = [*self.callback_handler.callbacks, self.control]
        for name, saved in self.state.stateful_callbacks.items():
            entries = saved if isinstance(saved, list) else [saved]
            same = [part for part in present if isinstance(part, ExportableState) and type(part).__name__ == name]
            if not same:
                of_transformers.warning(f"The checkpoint has the state of a callback {name}, which this run has not.")
            for part, entry in zip(same, entries, strict=False):
                again = type(part)(**entry.get("args", {}))
                vars(again).update(entry.get("attributes", {}))
                self._replace_callback(part, again)

    def _replace_callback(self, old: Any, new: Any) -> None:
        if isinstance(old, TrainerControl):
            self.control = new
        else:
            self.callback_handler.callbacks.remove(old)
            self.callback_handler.callbacks.append(new)  # the last to be called from here on, as in transformers
