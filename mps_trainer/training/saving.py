"""The Trainer's methods that write models and checkpoints, and read them again. A subclass may override each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.trainer_callback import TrainerState

from . import model_files
from .checkpoint import OPTIMIZER, SCALER, SCHEDULER
from .hooks import SavingHooks
from .resuming import Resuming
from .saver import CheckpointSaver, Contents

logger = logging.getLogger(__name__)


class Saving(Resuming):
    """What is saved when the loop or the user asks for it; checkpoint.py and model_files.py write the files."""

    if TYPE_CHECKING:  # other parts of the Trainer have them
        _trial: Any

        def _get_output_dir(self, trial: Any) -> str: ...
        def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...

        push_to_hub: Any

        def store_flos(self) -> None: ...

    def _mt_new_saver(self) -> CheckpointSaver:
        return CheckpointSaver(self._mt_contents, self._mt_events, self._mt_processes, self._mt_savable_logs.save)

    def _mt_contents(self) -> Contents:
        return Contents(
            args=self.args,
            model=self.model,
            processing_class=model_files.processor_to_save(self.processing_class, self.data_collator),
            optimizer=self.optimizer,
            lr_scheduler=self.lr_scheduler,
            scaler=self._mt_precision.scaler,
            run=self._mt_run,
        )

    # The model

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes weights (safetensors), configuration, tokenizer and arguments to `output_dir`, or the run's.

        Uploads them with `push_to_hub=True`, unless it is a part of a checkpoint. A sharded model is gathered for it,
        so that all processes have to call it.
        """
        weights = self._mt_saver.full_weights()
        given = {} if weights is None else {"state_dict": weights}
        self._save(self.args.output_dir if output_dir is None else output_dir, **given)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Writes the files of `save_model`; with `state_dict`, those weights instead of the model's."""
        if self.args.should_save:
            folder = self.args.output_dir if output_dir is None else output_dir
            processing_class = model_files.processor_to_save(self.processing_class, self.data_collator)
            model_files.save(self.model, processing_class, self.args, folder, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Loads a checkpoint's weights, or PEFT adapters, into `model`, by default the Trainer's."""
        model_files.load_weights(self.model if model is None else model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        """Goes back to the weights of the best checkpoint; says so if the best evaluation has none."""
        state = self.state
        state.best_model_checkpoint = self._mt_processes.first_does(lambda: state.best_model_checkpoint)
        if state.best_model_checkpoint is None:
            logger.warning(
                "load_best_model_at_end: the best evaluation, at step %s, has no checkpoint: the last weights stay. "
                "Give save_steps the value of eval_steps, or use save_strategy='best'.",
                state.best_global_step,
            )
        else:
            model_files.load_weights(self.model, state.best_model_checkpoint)

    # Checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes `checkpoint-<step>` into the run's folder and removes those beyond the limit.

        Where it is safe the files are written while training goes on; where the disk does not take them, training goes
        on as well, and `train` raises CheckpointError at its end if that was the last one.
        """
        self.store_flos()
        hooks = SavingHooks(
            self.save_model,
            self._save_optimizer_and_scheduler,
            self._save_scaler,
            self._save_rng_state,
            self._rotate_checkpoints,
            self._push_from_checkpoint,
        )
        self._mt_saver.save(self._get_output_dir(trial), hooks)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        self._mt_saver.save_parts(output_dir, OPTIMIZER, SCHEDULER)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        self._mt_saver.load_parts(checkpoint_folder, OPTIMIZER, SCHEDULER)

    def _save_scaler(self, output_dir: str) -> None:
        self._mt_saver.save_parts(output_dir, SCALER)

    def _load_scaler(self, checkpoint_folder: str | None) -> None:
        self._mt_saver.load_parts(checkpoint_folder, SCALER)

    def _save_rng_state(self, output_dir: str) -> None:
        self._mt_saver.save_rng(output_dir)

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        """Sets the generators to where they were when the checkpoint was made, if it says so."""
        self._mt_saver.load_rng(checkpoint_folder)

    def _rotate_checkpoints(
        self, use_mtime: bool = False, output_dir: str | None = None, state: TrainerState | None = None
    ) -> None:
        """Removes an overwritten run's checkpoints, now that there is one of this run, and those beyond the limit.

        Args:
            use_mtime: no matter; checkpoints of an earlier run are known and the others have steps.
            output_dir: default the run's folder.
            state: of when the newest checkpoint was made; default that of now.
        """
        run_dir = self._get_output_dir(self._trial) if output_dir is None else output_dir
        self._mt_saver.rotate(run_dir, self.state if state is None else state)
