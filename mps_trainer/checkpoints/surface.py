"""Names the attributes and methods of the Trainer that checkpoints are made of and written by.

Each of them is looked up when it is used, so an override, an attribute of the instance and a patch are honoured.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn
from transformers.trainer_callback import TrainerControl, TrainerState

from ..compat import Compat
from ..distributed import Processes
from ..model.precision import MixedPrecision
from ..training_args import TrainingArguments


class SavingTrainer(Protocol):
    """Names what checkpoints need of a Trainer, in transformers' names. Names with `_mt_` are this package's own."""

    args: TrainingArguments
    model: Any
    optimizer: Any
    lr_scheduler: Any
    processing_class: Any
    data_collator: Any
    state: TrainerState
    control: TrainerControl
    _mt_compat: Compat
    _mt_precision: MixedPrecision
    _mt_processes: Processes
    _mt_run: Any  # the run under way, None for a checkpoint that is saved by hand
    _mt_supervised: Any  # the run under way as its supervisor knows it, None without one

    @property
    def _mt_events(self) -> Any: ...  # callbacks' Events
    @property
    def _mt_savable_logs(self) -> Any: ...  # evaluation's SavableLogs, which writes the state

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...
    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None: ...
    def _save_optimizer_and_scheduler(self, output_dir: str) -> None: ...
    def _save_scaler(self, output_dir: str) -> None: ...
    def _save_rng_state(self, output_dir: str) -> None: ...
    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None: ...
    def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...
