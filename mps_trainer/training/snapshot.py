"""A checkpoint's contents in host memory, to be written while training goes on."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..checkpoints import folders
from ..checkpoints.host import nbytes, on_host
from ..devices.probes import physical_memory
from . import checkpoint, model_files
from .logged import SavableLogs

if TYPE_CHECKING:
    from transformers.trainer_callback import TrainerState

    from .saving import Saving

_SHARE = 8  # a copy may take this part of the machine's memory; training in what is left of it has to go on


@dataclass
class Snapshot:
    """What a checkpoint holds, none of it changed by the steps that come."""

    model: nn.Module
    processing_class: Any
    args: Any
    weights: dict[str, Any]
    parts: dict[str, Any]  # what torch.save writes, by the name of its file
    state: TrainerState
    savable_logs: SavableLogs

    @classmethod
    def take(cls, trainer: Saving) -> Snapshot:
        """Copies what the Trainer has now; the only part of a save that training waits for."""
        parts: dict[str, Any] = {}
        if not trainer.args.save_only_model:
            parts = {
                checkpoint.OPTIMIZER: trainer.optimizer.state_dict(),
                checkpoint.SCHEDULER: copy.deepcopy(trainer.lr_scheduler.state_dict()),
                **trainer.rng_files(),
            }
            if trainer.precision.scaler is not None:
                parts[checkpoint.SCALER] = copy.deepcopy(trainer.precision.scaler.state_dict())
        held = on_host({"weights": _inner(trainer.model).state_dict(), **parts})
        state = copy.copy(trainer.state)
        state.log_history = list(state.log_history)
        state.stateful_callbacks = copy.deepcopy(state.stateful_callbacks)
        weights, args = held.pop("weights"), copy.copy(trainer.args)
        return cls(trainer.model, trainer.tokenizer_to_save, args, weights, held, state, trainer.savable_logs)

    def write(self, folder: str) -> None:
        """Writes the files that a checkpoint has; those that the Trainer's methods write."""
        if isinstance(_inner(self.model), PreTrainedModel):
            model_files.save(self.model, self.processing_class, self.args, folder, self.weights)
        else:
            model_files.save(model_files.Weights(self.weights), self.processing_class, self.args, folder)
        for name, part in self.parts.items():
            torch.save(part, os.path.join(folder, name))
        self.savable_logs.save(self.state, os.path.join(folder, folders.STATE))


def may_be_taken(trainer: Any, own: type) -> bool:
    """Whether a checkpoint of this Trainer can be written from a copy, while training goes on.

    Not where the user's code takes part in writing it or expects it to be there at on_save, and not where a second
    copy of model and optimizer would crowd the machine's memory.

    Args:
        own: the class whose methods are known to write what `Snapshot` writes.
    """
    args, inner = trainer.args, _inner(trainer.model)
    if not args.save_async or args.push_to_hub or args.save_on_each_node or trainer.loop is None:
        return False
    if trainer.is_fsdp_enabled:  # it is gathered from all processes, or written by all
        return False
    if any(getattr(type(trainer), name) is not getattr(own, name) or name in vars(trainer) for name in _WRITERS):
        return False
    special = hasattr(inner, "peft_config") or getattr(inner, "quantization_method", None) is not None
    if special or not isinstance(trainer.optimizer, torch.optim.Optimizer):
        return False
    if isinstance(inner, PreTrainedModel) and type(inner).save_pretrained is not PreTrainedModel.save_pretrained:
        return False
    if trainer._mt_events.has_listener("on_save"):
        return False
    memory = physical_memory()
    size = nbytes([inner.state_dict(), trainer.optimizer.state_dict()])
    return memory is None or size <= memory // _SHARE


_WRITERS = (
    "_save_checkpoint",
    "save_model",
    "_save",
    "_save_optimizer_and_scheduler",
    "_save_scaler",
    "_save_rng_state",
    "_rotate_checkpoints",
)


def _inner(model: Any) -> Any:
    return getattr(model, "_orig_mod", model)
