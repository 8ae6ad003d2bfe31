"""Names the attributes and methods of the Trainer that the loop uses.

The loop looks each of them up when it calls it, so an override, an attribute of the instance and a patch are honoured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn
from transformers.trainer_callback import CallbackHandler
from transformers.trainer_utils import TrainOutput

from ..callbacks.events import Events
from ..checkpoints.checkpoints import Checkpoints
from ..checkpoints.saver import SavingTrainer
from ..data.transfer import BatchTransfer
from ..guards.memory_errors import DescribedTrainer
from ..guards.supervised import SupervisedRun
from ..model.preparation import PreparedTrainer


class TrainerSurface(SavingTrainer, PreparedTrainer, DescribedTrainer, Protocol):
    """Names what the loop needs of a Trainer beside what checkpoints need, in transformers' names."""

    model_wrapped: nn.Module
    label_names: list[str]
    callback_handler: CallbackHandler
    current_flos: float
    current_gradient_accumulation_steps: int
    hp_search_backend: Any
    hp_name: Any
    ignore_keys_for_eval: list[str] | None
    _train_batch_size: int
    _eval_dataloaders: dict[str, Any]
    is_in_train: bool
    _trial: Any
    _mt_supervised: SupervisedRun | None
    _mt_checkpoints: Checkpoints
    _mt_transfer: BatchTransfer

    @property
    def _mt_events(self) -> Events: ...

    # The start of a run
    def _get_output_dir(self, trial: Any) -> str: ...
    def get_train_dataloader(self) -> Any: ...
    def set_initial_training_values(
        self, args: Any, dataloader: Any
    ) -> tuple[int, int, int, float, int, int, int]: ...
    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None: ...
    def is_local_process_zero(self) -> bool: ...
    def is_world_process_zero(self) -> bool: ...
    def _wrap_model(self, model: Any) -> nn.Module: ...

    # A resumed run
    def _load_from_checkpoint(self, resume_from_checkpoint: str) -> None: ...
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...
    def _load_scaler(self, checkpoint: str | None) -> None: ...
    def _load_rng_state(self, checkpoint: str | None) -> None: ...
    def _load_callback_state(self) -> None: ...

    # An update
    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]: ...
    def split_batch(self, batch: Any, most: int) -> list[Any]: ...
    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor: ...
    def compute_loss(self, model: nn.Module, inputs: Any, *, num_items_in_batch: Any = None) -> Any: ...
    def compute_loss_context_manager(self) -> AbstractContextManager: ...
    def _prepare_inputs(self, inputs: Any) -> Any: ...
    def floating_point_ops(self, inputs: Any) -> int: ...
    def _track_num_input_tokens(self, inputs: Any) -> None: ...
    def _clip_grad_norm(self, model: nn.Module) -> Any: ...
    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any: ...
    def _get_learning_rate(self) -> float: ...

    # After an update, and at the end
    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: nn.Module,
        trial: Any,
        epoch: float | None,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None: ...
    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]: ...
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None: ...
    def store_flos(self) -> None: ...
    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput: ...
