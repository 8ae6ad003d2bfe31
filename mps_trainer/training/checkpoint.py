"""Checkpoints: the files of a run at one step, written and read.

Names and contents are transformers', so that tools which read its checkpoints read these.
"""

from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

import torch

from ..errors import MisconfigurationException
from .files import read_object, read_tensors, write_json
from .folders import STATE, checkpoint_folder, put_in_place, rotate
from .meter import LossMeter
from .model_files import load_weights
from .rng import FILE as RNG_FILE
from .rng import read_rng, rng_state

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"
LOOP = "loop_state.json"  # where the loop stands between two logs; transformers has no such file


def save(trainer: Trainer, meter: LossMeter, epoch_has_ended: bool) -> str:
    """Writes `checkpoint-<step>` into the output folder and removes those beyond the limit.

    The files are written to a folder beside it, which then takes the name: a checkpoint that exists is whole.
    """
    args, step = trainer.args, trainer.state.global_step
    run_dir = trainer._get_output_dir(trainer._trial)
    folder = checkpoint_folder(run_dir, step)
    if not args.should_save:
        return folder
    unfinished = os.path.join(run_dir, f"tmp-checkpoint-{step}")
    shutil.rmtree(unfinished, ignore_errors=True)
    trainer.store_flos()
    trainer.save_model(unfinished, _internal_call=True)
    _note_best(trainer, folder)
    if not args.save_only_model:
        torch.save(trainer.optimizer.state_dict(), os.path.join(unfinished, OPTIMIZER))
        torch.save(trainer.lr_scheduler.state_dict(), os.path.join(unfinished, SCHEDULER))
        if trainer.precision.scaler is not None:
            torch.save(trainer.precision.scaler.state_dict(), os.path.join(unfinished, SCALER))
        assert trainer.loop is not None  # a checkpoint is made while training
        torch.save({**rng_state(), **trainer.loop.draws.state()}, os.path.join(unfinished, RNG_FILE))
        write_json(os.path.join(unfinished, LOOP), {**meter.state(), "epoch_has_ended": epoch_has_ended})
    trainer.state.stateful_callbacks = trainer.new_state().stateful_callbacks
    trainer.state.save_to_json(os.path.join(unfinished, STATE))
    put_in_place(unfinished, folder)
    if args.push_to_hub:
        trainer._push_from_checkpoint(folder)
    _remove_old(trainer, folder)
    return folder


def restore_progress(trainer: Trainer, meter: LossMeter, folder: str) -> tuple[dict[str, Any] | None, bool]:
    """Weights, optimizer, schedule and loss as they were when the checkpoint was made.

    Returns:
        The random number generators' states to go on with, if the checkpoint has them; and whether the epoch of its
        step, if that was the last of one, had been ended.

    Raises:
        MisconfigurationException: if the checkpoint is damaged, or not one of this model and optimizer.
    """
    load_weights(trainer.model, folder)
    meter.begin_at(trainer.state.global_step)
    parts = {OPTIMIZER: trainer.optimizer, SCHEDULER: trainer.lr_scheduler, SCALER: trainer.precision.scaler}
    for name, part in parts.items():
        if part is not None:
            _restore_part(part, os.path.join(folder, name))
    epoch_has_ended = True
    if os.path.isfile(path := os.path.join(folder, LOOP)):
        saved = read_object(path, [*meter.state(), "epoch_has_ended"])
        meter.load_state(saved)
        epoch_has_ended = saved["epoch_has_ended"]
    return read_rng(folder), epoch_has_ended


def _restore_part(part: Any, path: str) -> None:
    if not os.path.isfile(path):
        folder, name = os.path.split(path)
        logger.warning("%s has no %s: that part of the run starts anew.", folder, name)
        return
    saved = read_tensors(path)
    try:
        part.load_state_dict(saved)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise MisconfigurationException(
            f"{path} does not belong to this run: {why}. Resume with the model and optimizer that it was saved from, "
            "or train from the beginning."
        ) from error


def _note_best(trainer: Trainer, folder: str) -> None:
    """Records where the best weights are, which may be the checkpoint that is about to exist."""
    state = trainer.state
    if state.best_global_step:
        best = checkpoint_folder(os.path.dirname(folder), state.best_global_step)
        if best == folder or (os.path.isdir(best) and best not in trainer.earlier_checkpoints):
            state.best_model_checkpoint = best


def _remove_old(trainer: Trainer, folder: str) -> None:
    """Removes an overwritten run's checkpoints, now that there is one of this run, and those beyond the limit."""
    trainer.earlier_checkpoints.discard(folder)
    if trainer.args.overwrite_output_dir:
        for old in trainer.earlier_checkpoints:
            shutil.rmtree(old, ignore_errors=True)
        trainer.earlier_checkpoints.clear()
    args, best = trainer.args, trainer.state.best_model_checkpoint
    rotate(os.path.dirname(folder), args.save_total_limit, folder, best, trainer.earlier_checkpoints)
