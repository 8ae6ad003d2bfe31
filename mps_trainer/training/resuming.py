"""The state of a run: at its beginning, and going on from a checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import ExportableState, TrainerControl, TrainerState

from ..checkpoints import folders
from ..checkpoints.belonging import require_exported
from ..checkpoints.files import damaged
from ..checkpoints.state import entries_of, read_state
from .base import TrainerBase

logger = logging.getLogger(__name__)
of_transformers = logging.getLogger("transformers.trainer")  # for what its users look for under its name


class Resuming(TrainerBase):
    """Makes `state` what a run begins with."""

    if TYPE_CHECKING:  # another part of the Trainer has them

        def _get_output_dir(self, trial: Any) -> str: ...
        def _mt_note_trial(self) -> None: ...

    def _mt_begin_state(self, max_steps: int, epochs: int, resume_from: str | None, trial: Any = None) -> None:
        """Makes `state` that of a run about to begin, or of the checkpoint it goes on from."""
        self.state = self._mt_new_state()
        if resume_from is not None:
            self._mt_go_on_from(resume_from)
        state, run_dir = self.state, self._get_output_dir(trial)
        found = folders.find_checkpoints(run_dir)
        # later steps than those of the checkpoint are another run's, or of a past that this one leaves
        self._mt_earlier_checkpoints = {
            folder for folder in found if not resume_from or folders.step_of(folder) > state.global_step
        }
        state.max_steps, state.num_train_epochs = max_steps, epochs
        state.is_local_process_zero = self.is_local_process_zero()
        state.is_world_process_zero = self.is_world_process_zero()
        state.train_batch_size = self._mt_examples_at_a_time or self._train_batch_size
        state.compute_steps(self.args, max_steps)
        self._mt_note_trial()
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    def _mt_go_on_from(self, folder: str) -> None:
        """Makes `state` that of a checkpoint; warns of arguments that have changed, and of what is gone."""
        saved = read_state(folder)
        fields = {field.name for field in dataclasses.fields(TrainerState)}
        known = {name: value for name, value in saved.items() if name in fields}
        callbacks = known.pop("stateful_callbacks", None) or {}
        self.state = TrainerState(**{**known, "stateful_callbacks": None})
        best = self.state.best_model_checkpoint
        if best is not None and not os.path.isdir(best):
            moved = os.path.join(os.path.dirname(os.path.abspath(folder)), os.path.basename(best))
            self.state.best_model_checkpoint = moved if os.path.isdir(moved) else None
            if self.state.best_model_checkpoint is None:
                logger.warning(
                    "The best checkpoint, %s, does not exist any more: the next best takes its place.", best
                )
                self.state.best_metric = self.state.best_global_step = None
        try:
            from transformers.trainer_utils import compare_trainer_and_checkpoint_args
        except ImportError:  # a method of transformers' Trainer in the first releases of 5
            pass
        else:
            # auto_find_batch_size has its own way to go on with another size
            if self.state.train_batch_size is not None and not self.args.auto_find_batch_size:
                compare_trainer_and_checkpoint_args(self.args, self.state)
        self.state.stateful_callbacks = callbacks
        self._load_callback_state(os.path.join(folder, folders.STATE))
        self.state.stateful_callbacks = self._mt_new_state().stateful_callbacks

    def _load_callback_state(self, path: str) -> None:
        """Gives callbacks the state that `state.stateful_callbacks`, read from `path`, has of them, if asked to.

        Raises:
            MisconfigurationException: for a state that a callback does not take.
        """
        if not self.args.restore_callback_states_from_checkpoint:
            return
        present = [*self.callback_handler.callbacks, self.control]
        for name, saved in self.state.stateful_callbacks.items():
            same = [part for part in present if isinstance(part, ExportableState) and type(part).__name__ == name]
            if not same:
                of_transformers.warning(f"The checkpoint has the state of a callback {name}, which this run has not.")
            for part, entry in zip(same, entries_of(saved), strict=False):
                try:
                    require_exported(entry, part)
                    again: Any = type(part)(**entry.get("args", {}))
                except Exception as error:
                    raise damaged(path, ValueError(f"{name} does not take its state: {error}")) from error
                vars(again).update(entry.get("attributes", {}))
                self._mt_replace_callback(part, again)

    def _mt_replace_callback(self, old: Any, new: Any) -> None:
        if isinstance(old, TrainerControl):
            self.control = new
        else:
            self.callback_handler.callbacks.remove(old)
            self.callback_handler.callbacks.append(new)  # the last to be called from here on, as in transformers
