"""Writes the files of model and optimizer: by the Trainer's methods, from a copy in host memory, or in shards."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..arguments.sharding import SHARDED
from ..devices.probes import physical_memory
from ..distributed.sharded import is_sharded
from ..training_args import TrainingArguments
from . import model_files, optimizer_files, shards
from .optimizer_files import OPTIMIZER, SCHEDULER
from .storage.host import nbytes, on_host
from .surface import WRITERS, SavingTrainer

_SHARE = 8  # a copy may take this part of the machine's memory; training in what is left of it has to go on


@dataclass(frozen=True)
class Writer:
    """Writes the files of a checkpoint into a folder.

    Attributes:
        write: writes them, in one process.
        write_shards: writes the shards of this process before that; None where one process writes everything.
        in_background: True if `write` reads copies only, so that training may continue meanwhile.
    """

    write: Callable[[str], None]
    write_shards: Callable[[str], None] | None = None
    in_background: bool = False


def writer_for(trainer: SavingTrainer, states: Mapping[str, Any]) -> Writer:
    """Returns the writer of the Trainer's next checkpoint: in shards, in the background, or by its methods.

    Args:
        states: optimizer, schedule, scaler and generators by the names of their files; empty to write the model only.
    """
    if writes_shards(trainer.model, trainer.args):
        return shard_writer(trainer, states)
    if _may_write_in_background(trainer):
        return background_writer(trainer, states)
    return Writer(functools.partial(_write_by_methods, trainer))


def writes_shards(model: nn.Module, args: TrainingArguments) -> bool:
    """Returns True if each process writes its shards of the model and the optimizer."""
    config: Any = args.fsdp_config
    return is_sharded(model) and config.get("state_dict_type") == SHARDED


def _write_by_methods(trainer: SavingTrainer, folder: str) -> None:
    trainer.save_model(folder, _internal_call=True)
    os.makedirs(folder, exist_ok=True)  # an override may remove what it does not know
    if not trainer.args.save_only_model:
        trainer._save_optimizer_and_scheduler(folder)
        trainer._save_scaler(folder)
        trainer._save_rng_state(folder)


def shard_writer(trainer: SavingTrainer, states: Mapping[str, Any]) -> Writer:
    """Returns the writer of a checkpoint in which each process writes its shards of weights and optimizer."""
    model, optimizer = trainer.model, states.get(OPTIMIZER)

    def write_shards(folder: str) -> None:
        optimizer_files.save_shards(model, optimizer, folder, trainer._mt_processes.group)

    def write(folder: str) -> None:
        shards.list_parts(folder)
        model_files.save_without_weights(model, _processor(trainer), trainer.args, folder)
        if optimizer is not None:
            optimizer_files.save_rest_of_optimizer(optimizer, folder)
            optimizer_files.save_states({SCHEDULER: states[SCHEDULER]}, folder)
            trainer._save_scaler(folder)
            trainer._save_rng_state(folder)

    return Writer(write, write_shards)


def background_writer(trainer: SavingTrainer, states: Mapping[str, Any]) -> Writer:
    """Copies weights and `states`, and returns the writer of the copies. Training waits for the copy only."""
    model, args, processor = trainer.model, copy.copy(trainer.args), _processor(trainer)
    inner = _inner(model)
    weights, copied = on_host((inner.state_dict(), {name: _state_of(owner) for name, owner in states.items()}))

    def write(folder: str) -> None:
        if isinstance(inner, PreTrainedModel):
            model_files.save(model, processor, args, folder, weights)
        else:
            model_files.save(model_files.Weights(weights), processor, args, folder)
        optimizer_files.save_states(copied, folder)

    return Writer(write, in_background=True)


def _state_of(owner: Any) -> Any:
    """Returns the state of `owner`. Later steps change only its tensors."""
    state = optimizer_files.state_of(owner)
    return state if state is owner or isinstance(owner, torch.optim.Optimizer) else copy.deepcopy(state)


def _may_write_in_background(trainer: SavingTrainer) -> bool:
    """Returns True if a checkpoint can be written in the background from a copy.

    It cannot where a checkpoint is saved by hand or gathered from all processes, where the user's code takes part in
    writing it or expects it to be there at on_save, nor where a second copy of model and optimizer would crowd the
    machine's memory.
    """
    args, inner, optimizer = trainer.args, _inner(trainer.model), trainer.optimizer
    if trainer._mt_run is None or not args.save_async or args.save_on_each_node or args.fsdp:
        return False
    overrides, events = trainer._mt_overrides, trainer._mt_events
    if overrides.has(*WRITERS) or events.has_listener("on_save"):
        return False
    # an upload begins when the checkpoint is complete, which may be a step later
    if args.push_to_hub and (overrides.has("_push_from_checkpoint") or events.has_listener("on_push_begin")):
        return False
    special = hasattr(inner, "peft_config") or getattr(inner, "quantization_method", None) is not None
    if special or not isinstance(optimizer, torch.optim.Optimizer):
        return False
    if isinstance(inner, PreTrainedModel) and type(inner).save_pretrained is not PreTrainedModel.save_pretrained:
        return False
    memory = physical_memory()
    size = nbytes([inner.state_dict(), optimizer.state_dict()])
    return memory is None or size <= memory // _SHARE


def _processor(trainer: SavingTrainer) -> Any:
    return model_files.processor_to_save(trainer.processing_class, trainer.data_collator)


def _inner(model: Any) -> Any:
    return getattr(model, "_orig_mod", model)
