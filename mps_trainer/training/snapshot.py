"""A checkpoint's contents in host memory, to be written while training goes on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.trainer_callback import TrainerState

from ..checkpoints.host import nbytes, on_host
from ..devices.probes import physical_memory
from ..training_args import TrainingArguments
from . import checkpoint, model_files

_SHARE = 8  # a copy may take this part of the machine's memory; training in what is left of it has to go on


@dataclass
class Snapshot:
    """What a checkpoint holds, none of it changed by the steps that come."""

    model: nn.Module
    processing_class: Any
    args: TrainingArguments
    weights: dict[str, Any]
    parts: dict[str, Any]  # what torch.save writes, by the name of its file

    @classmethod
    def take(
        cls, model: nn.Module, processing_class: Any, args: TrainingArguments, parts: Mapping[str, Any]
    ) -> Snapshot:
        """Copies weights and `parts`; the only part of a save that training waits for."""
        states = {name: _state_of(part) for name, part in parts.items()}
        weights, held = on_host((_inner(model).state_dict(), states))
        return cls(model, processing_class, copy.copy(args), weights, held)

    def write(self, folder: str) -> None:
        """Writes the files that the Trainer's methods write."""
        if isinstance(_inner(self.model), PreTrainedModel):
            model_files.save(self.model, self.processing_class, self.args, folder, self.weights)
        else:
            model_files.save(model_files.Weights(self.weights), self.processing_class, self.args, folder)
        checkpoint.save_parts(self.parts, folder)


def _state_of(part: Any) -> Any:
    """Returns the state of `part`, of which only the tensors may still change."""
    state = checkpoint.state_of(part)
    return state if state is part or isinstance(part, torch.optim.Optimizer) else copy.deepcopy(state)


def copy_of_state(state: TrainerState) -> TrainerState:
    """Returns a copy of `state` with a log and callbacks of its own."""
    copied = copy.copy(state)
    copied.log_history = list(state.log_history)
    copied.stateful_callbacks = copy.deepcopy(state.stateful_callbacks)
    return copied


def may_be_taken(
    args: TrainingArguments, model: nn.Module, optimizer: Any, *, writers_overridden: bool, has_save_listener: bool
) -> bool:
    """Returns True if a checkpoint can be written from a copy while training goes on.

    It cannot where the user's code takes part in writing it or expects it to be there at on_save, nor where a second
    copy of model and optimizer would crowd the machine's memory.

    Args:
        writers_overridden: True if a subclass replaces a method that writes what `Snapshot` writes.
        has_save_listener: True if a callback is told on_save.
    """
    inner = _inner(model)
    if not args.save_async or args.push_to_hub or args.save_on_each_node or writers_overridden or has_save_listener:
        return False
    special = hasattr(inner, "peft_config") or getattr(inner, "quantization_method", None) is not None
    if special or not isinstance(optimizer, torch.optim.Optimizer):
        return False
    if isinstance(inner, PreTrainedModel) and type(inner).save_pretrained is not PreTrainedModel.save_pretrained:
        return False
    memory = physical_memory()
    size = nbytes([inner.state_dict(), optimizer.state_dict()])
    return memory is None or size <= memory // _SHARE


def _inner(model: Any) -> Any:
    return getattr(model, "_orig_mod", model)
