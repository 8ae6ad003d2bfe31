"""Writes a checkpoint by the methods of a Trainer, where a subclass, an instance or a patch overrides them."""

from __future__ import annotations

import os
from typing import Protocol

from ..training_args import TrainingArguments


class WritingTrainer(Protocol):
    """Names the methods of a Trainer that write a checkpoint, which are transformers'."""

    args: TrainingArguments

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...
    def _save_optimizer_and_scheduler(self, output_dir: str) -> None: ...
    def _save_scaler(self, output_dir: str) -> None: ...
    def _save_rng_state(self, output_dir: str) -> None: ...
    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None: ...


class TrainerMethods:
    """Calls the methods of a Trainer that write a checkpoint. Made for one save, and not kept."""

    def __init__(self, trainer: WritingTrainer) -> None:
        self._trainer = trainer

    def write_files(self, folder: str) -> None:
        """Writes the model and, unless it is saved alone, optimizer, schedule, scaler and random states."""
        self._trainer.save_model(folder, _internal_call=True)
        os.makedirs(folder, exist_ok=True)  # an override may remove a folder that it does not know
        if not self._trainer.args.save_only_model:
            self._trainer._save_optimizer_and_scheduler(folder)
            self.write_scaler_and_rng(folder)

    def write_scaler_and_rng(self, folder: str) -> None:
        self._trainer._save_scaler(folder)
        self._trainer._save_rng_state(folder)

    def rotate(self, run_dir: str) -> None:
        """Removes the checkpoints beyond the limit."""
        self._trainer._rotate_checkpoints(output_dir=run_dir)
