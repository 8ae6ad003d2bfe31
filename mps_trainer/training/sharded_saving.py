"""Checkpoints of a model that is sharded over the processes: gathered and written by the first, or written by all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arguments.sharding import SHARDED
from ..checkpoints import folders, shards
from ..checkpoints.sealing import seal, why_not_written
from ..distributed import Processes
from ..distributed.sharded import is_sharded
from . import checkpoint, model_files
from .gathered import whole_state, whole_weights

if TYPE_CHECKING:
    import torch

    from .saving import Saving


@dataclass
class Gathered:
    """What a checkpoint has of all processes, on the host; nothing in those that do not write."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None

    @classmethod
    def by(cls, trainer: Saving) -> Gathered:
        """All processes have to call it."""
        keep, optimizer = trainer.args.should_save, trainer.optimizer
        weights = whole_weights(trainer.model, keep)
        state = None if trainer.args.save_only_model or optimizer is None else whole_state(optimizer, keep)
        return cls(weights, state if keep else None)


def each_writes(trainer: Saving) -> bool:
    """Whether each process writes its part of a checkpoint."""
    config: Any = trainer.args.fsdp_config
    return is_sharded(trainer.model) and config.get("state_dict_type") == SHARDED


def write_together(trainer: Saving, unfinished: str, folder: str, step: int) -> str | None:
    """Writes the checkpoint `folder`, each process its part; sealed once all parts are there. All have to call it.

    Returns:
        Why the disk of one of them did not take it, in all of them; None if it is whole.
    """
    first, args = trainer.processes.is_first, trainer.args
    optimizer = None if args.save_only_model else trainer.optimizer

    def begin() -> None:
        shutil.rmtree(unfinished, ignore_errors=True)
        os.makedirs(unfinished)

    def parts() -> None:
        checkpoint.save_shards(trainer.model, optimizer, unfinished, trainer.processes.group)

    def rest() -> None:
        shards.list_parts(unfinished)
        model_files.save_without_weights(trainer.model, trainer.tokenizer_to_save, args, unfinished)
        if optimizer is not None:
            checkpoint.save_rest_of_optimizer(optimizer, unfinished)
            checkpoint.save_part(trainer.lr_scheduler, unfinished, checkpoint.SCHEDULER)
            trainer._save_scaler(unfinished)
            trainer._save_rng_state(unfinished)
        trainer.savable_logs.save(trainer.state, os.path.join(unfinished, folders.STATE))
        seal(unfinished, folder, step)

    why = None
    for work, is_own in ((begin, first), (parts, True), (rest, first)):
        if why is None:
            why = _attempted(trainer.processes, work if is_own else None, unfinished)
    if why is not None and first:
        shutil.rmtree(unfinished, ignore_errors=True)
    return why


def _attempted(processes: Processes, work: Callable[[], None] | None, folder: str) -> str | None:
    """Returns why the disk did not take what one of the processes wrote to `folder`, in all of them; None if it did.

    Raises:
        Exception: what else `work` raises; a RuntimeError in the others then.
    """
    why, error = None, None
    try:
        if work is not None:
            work()
    except Exception as raised:
        why = why_not_written(raised, folder)
        error = raised if why is None else None
    told = processes.gather((why, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    for rank, (_, failed) in enumerate(told):
        if failed is not None:
            raise RuntimeError(f"Process {rank} has failed, and this one, process {processes.rank}, with it. {failed}")
    return next((reason for reason, _ in told if reason is not None), None)
