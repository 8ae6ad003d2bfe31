"""What every part of the Trainer stands on: its attributes, its events, its log."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.trainer_callback import (
    CallbackHandler,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.trainer_pt_utils import log_metrics, save_metrics, save_state
from transformers.trainer_utils import speed_metrics

from ..callbacks.device_stats import call_first_who_add_to_logs
from ..data.transfer import BatchTransfer
from ..distributed import Processes
from ..evaluation.metrics import plain
from ..guards.exhausted import RunDescription
from ..overrides import Overrides
from ..training_args import TrainingArguments
from .accelerator import Accelerator
from .events import Events
from .logged import SavableLogs, as_cell
from .masks import AttentionMasks
from .precision import MixedPrecision

if TYPE_CHECKING:
    from .loop import TrainingRun
    from .saver import CheckpointSaver


class TrainerBase:
    """Attributes that a Trainer has once it is made, and how it tells others what happens."""

    args: TrainingArguments
    accelerator: Accelerator
    _mt_run: TrainingRun | None = None  # the one that runs
    model: nn.Module
    model_wrapped: nn.Module  # compiled, if the arguments ask for it; otherwise the model
    model_accepts_loss_kwargs: bool
    model_preparation_time: float | None = None  # seconds, once a model was made ready for evaluation alone
    place_model_on_device: bool
    is_in_train: bool
    is_model_parallel: bool
    # what transformers' Trainer has and this one refuses to be asked for, so that who looks is told so
    is_deepspeed_enabled = is_fsdp_xla_enabled = False
    is_fsdp_enabled = False  # whether the parameters are spread over the processes, from the first pass on
    deepspeed = None
    processing_class: Any
    data_collator: Callable
    train_dataset: Any
    eval_dataset: Any
    compute_metrics: Callable | None
    preprocess_logits_for_metrics: Callable | None
    optimizer: Any
    lr_scheduler: Any
    _mt_precision: MixedPrecision
    _mt_processes = Processes()  # that train together
    _mt_transfer: BatchTransfer
    _mt_attention_masks: AttentionMasks
    _mt_events: Events
    _mt_overrides = Overrides()
    _mt_saver: CheckpointSaver
    label_names: list[str]
    can_return_loss: bool
    ignore_keys_for_eval: list[str] | None = None
    _memory_tracker: Any
    _mt_tokens_before: int = 0  # the run that goes on
    _train_batch_size: int  # of the loader; smaller than that of the arguments in a run that transformers began
    _mt_examples_at_a_time: int | None = None  # that a resumed run begins with; None: whole batches

    def _prepare_input(self, data: Any) -> Any:
        """A tensor, or what is made of tensors, on the device."""
        return self._mt_transfer(data)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if not inputs:
            raise ValueError(
                "A batch came out empty, so the model has no input. Check that the dataset has columns that "
                f"{type(self.model).__name__}.forward takes: {', '.join(getattr(self, '_mt_signature_columns', []))}."
            )
        return self._prepare_input(inputs)

    @property
    def _mt_main_input_name(self) -> str:
        return getattr(self.model, "main_input_name", "input_ids")

    def _mt_describe_run(self) -> RunDescription:
        """Returns what an error about memory needs to know of the run now, even before __init__ has ended."""
        args, state = self.args, getattr(self, "state", None)
        return RunDescription(
            args=args,
            model=getattr(self, "model", None),
            optimizer=self.optimizer,
            autocast_dtype=self._mt_precision.dtype,
            step=state.global_step + 1 if state else 1,
            batch_size=(state.train_batch_size if state else None) or args.train_batch_size,
            has_metrics=self.compute_metrics is not None,
            is_training=self.is_in_train,
        )

    # What another part of the Trainer does

    if TYPE_CHECKING:

        def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any: ...
        def compute_loss_context_manager(self) -> Any: ...
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any: ...

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        raise NotImplementedError

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        raise NotImplementedError

    def _get_output_dir(self, trial: Any) -> str:
        raise NotImplementedError

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        raise NotImplementedError

    # Events

    @property
    def callback_handler(self) -> CallbackHandler:
        """transformers' handler, which calls the callbacks."""
        return self._mt_events.handler

    @callback_handler.setter
    def callback_handler(self, handler: CallbackHandler) -> None:
        self._mt_events.handler = handler

    @property
    def state(self) -> TrainerState:
        """The state of the run: transformers' `TrainerState`."""
        return self._mt_events.state

    @state.setter
    def state(self, state: TrainerState) -> None:
        self._mt_events.state = state

    @property
    def control(self) -> TrainerControl:
        """The requests of the callbacks: transformers' `TrainerControl`."""
        return self._mt_events.control

    @control.setter
    def control(self, control: TrainerControl) -> None:
        self._mt_events.control = control

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.add_callback(callback)
        call_first_who_add_to_logs(self.callback_handler.callbacks)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Removes and returns the callback, or the first of the class; None if there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.remove_callback(callback)

    # Log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds `logs`, with epoch and step, to the history and tells the callbacks."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            seen = self.state.num_input_tokens_seen
            logs["num_input_tokens_seen"] = seen
            if start_time is not None:
                logs.update(speed_metrics("train", start_time, num_tokens=seen - self._mt_tokens_before))
        self.state.log_history.append({**self._mt_savable_logs.of(logs), "step": self.state.global_step})
        self._mt_events.fire("on_log", logs=logs)

    save_state = save_state

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Prints metrics as a table, by the first process alone."""
        shown = {name: plain(value) for name, value in metrics.items()}
        log_metrics(self, split, {name: as_cell(value) for name, value in shown.items()})

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Writes `<split>_results.json`, and all_results.json if `combined`, without what JSON cannot hold."""
        save_metrics(self, split, self._mt_savable_logs.of(metrics), combined)

    @functools.cached_property
    def _mt_savable_logs(self) -> SavableLogs:
        return SavableLogs()

    # Processes

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0
