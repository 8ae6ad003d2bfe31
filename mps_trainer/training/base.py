"""What every part of the Trainer stands on: its attributes, its events, its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers.trainer_callback import (
    CallbackHandler,
    ExportableState,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.trainer_pt_utils import log_metrics, save_metrics, save_state

from ..data.transfer import to_device
from ..training_args import TrainingArguments
from .precision import MixedPrecision


class TrainerBase:
    """Attributes that a Trainer has once it is made, and how it tells others what happens."""

    args: TrainingArguments
    model: nn.Module
    processing_class: Any
    data_collator: Callable
    train_dataset: Any
    eval_dataset: Any
    compute_metrics: Callable | None
    preprocess_logits_for_metrics: Callable | None
    optimizer: Any
    lr_scheduler: Any
    precision: MixedPrecision
    callback_handler: CallbackHandler
    state: TrainerState
    control: TrainerControl
    label_names: list[str]
    can_return_loss: bool
    earlier_checkpoints: set[str]  # in the output folder, of a run before this one
    ignore_keys_for_eval: list[str] | None = None

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if not inputs:
            raise ValueError(
                "A batch came out empty, so the model has no input. Check that the dataset has columns that "
                f"{type(self.model).__name__}.forward takes: {', '.join(getattr(self, 'signature_columns', []))}."
            )
        return to_device(inputs, self.args.device)

    # Events

    def fire(self, event: str, **details: Any) -> None:
        """Tells every callback that `event` has come."""
        self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control, **details)

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Removes and returns the callback, or the first of the class; None if there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.remove_callback(callback)

    def new_state(self) -> TrainerState:
        """A state at step 0, with what the callbacks want kept in checkpoints."""
        kept = [*self.callback_handler.callbacks, self.control]
        return TrainerState(
            epoch=0.0,  # None by default in some releases of transformers
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            stateful_callbacks=[part for part in kept if isinstance(part, ExportableState)],
        )

    # Log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds `logs`, with epoch and step, to the history and tells the callbacks."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.fire("on_log", logs=logs)

    save_state = save_state
    log_metrics = log_metrics
    save_metrics = save_metrics

    # Processes

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0
