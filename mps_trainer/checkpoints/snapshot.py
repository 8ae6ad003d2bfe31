"""Writes checkpoints in the background from a copy in host memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.trainer_callback import TrainerState

from ..devices.probes import physical_memory
from ..training_args import TrainingArguments
from . import model_files, run_files
from .manager import Writer
from .storage.host import nbytes, on_host

WRITERS = (  # where they are the Trainer's own, `background_writer` writes what they do
    "_save_checkpoint",
    "save_model",
    "_save",
    "_save_optimizer_and_scheduler",
    "_save_scaler",
    "_save_rng_state",
    "_rotate_checkpoints",
)
_SHARE = 8  # a copy may take this part of the machine's memory; training in what is left of it has to go on


def background_writer(
    model: nn.Module, processing_class: Any, args: TrainingArguments, parts: Mapping[str, Any]
) -> Writer:
    """Copies weights and `parts` and returns the writer of the checkpoint. Training waits only for the copy.

    It writes the files that the Trainer's methods write.
    """
    inner, args = _inner(model), copy.copy(args)
    weights, states = on_host((inner.state_dict(), {name: _state_of(part) for name, part in parts.items()}))

    def write(folder: str) -> None:
        if isinstance(inner, PreTrainedModel):
            model_files.save(model, processing_class, args, folder, weights)
        else:
            model_files.save(model_files.Weights(weights), processing_class, args, folder)
        run_files.save_parts(states, folder)

    return Writer(write, in_background=True)


def _state_of(part: Any) -> Any:
    """Returns the state of `part`. Later steps change only its tensors."""
    state = run_files.state_of(part)
    return state if state is part or isinstance(part, torch.optim.Optimizer) else copy.deepcopy(state)


def copy_of_state(state: TrainerState) -> TrainerState:
    """Returns a copy of `state` that does not share the log and the callbacks."""
    copied = copy.copy(state)
    copied.log_history = list(state.log_history)
    copied.stateful_callbacks = copy.deepcopy(state.stateful_callbacks)
    return copied


def may_write_in_background(
    args: TrainingArguments, model: nn.Module, optimizer: Any, *, writers_overridden: bool, has_save_listener: bool
) -> bool:
    """Returns True if a checkpoint can be written in the background from a copy.

    It cannot where the user's code takes part in writing it or expects it to be there at on_save, nor where a second
    copy of model and optimizer would crowd the machine's memory.

    Args:
        writers_overridden: True if a subclass replaces a method that writes what `background_writer` writes.
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
