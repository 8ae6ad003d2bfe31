"""Writes checkpoints of a sharded model: gathered in the first process, or each process its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..arguments.sharding import SHARDED
from ..distributed import Processes
from ..distributed.full_state import full_state_dict, whole_state
from ..distributed.sharded import is_sharded
from ..training_args import TrainingArguments
from . import model_files, run_files, shards
from .manager import Writer
from .run_files import OPTIMIZER, SCHEDULER
from .storage.weights import WEIGHTS


def each_writes(model: torch.nn.Module, args: TrainingArguments) -> bool:
    """Returns True if each process writes its part of a checkpoint."""
    config: Any = args.fsdp_config
    return is_sharded(model) and config.get("state_dict_type") == SHARDED


def gather(model: torch.nn.Module, optimizer: Any, keep: bool) -> dict[str, Any]:
    """Returns whole weights, and the whole state of `optimizer` if there is one, by the names of their files.

    All processes have to call it; those that do not `keep` them get no tensors.
    """
    weights = {WEIGHTS: full_state_dict(model, keep)}
    return weights if optimizer is None else {**weights, OPTIMIZER: whole_state(optimizer, keep)}


def sharded_writer(
    model: torch.nn.Module,
    processing_class: Any,
    args: TrainingArguments,
    parts: Mapping[str, Any],
    save_rest: Sequence[Callable[[str], None]],
    processes: Processes,
) -> Writer:
    """Returns the writer of a checkpoint in which each process writes its part.

    Args:
        parts: optimizer and schedule, by the names of their files; without them, only the model is written.
        save_rest: the Trainer's methods that write the other files that go with an optimizer.
    """
    optimizer = parts.get(OPTIMIZER)

    def write_part(folder: str) -> None:
        run_files.save_shards(model, optimizer, folder, processes.group)

    def write(folder: str) -> None:
        shards.list_parts(folder)
        model_files.save_without_weights(model, processing_class, args, folder)
        if optimizer is not None:
            run_files.save_rest_of_optimizer(optimizer, folder)
            run_files.save_parts({SCHEDULER: parts[SCHEDULER]}, folder)
            for save in save_rest:
                save(folder)

    return Writer(write, write_part, rank=processes.rank, gather=processes.gather)
