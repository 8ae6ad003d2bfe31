"""Checkpoints: the files of a run at one step, written and read.

Names and contents are transformers', so that a run that it began goes on here, and one that began here goes on there.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch

from ..checkpoints.files import read_tensors
from ..checkpoints.folders import checkpoint_folder
from ..checkpoints.rng import FILE as RNG_FILE
from ..checkpoints.rng import read_rng, rng_state
from ..errors import MisconfigurationException

if TYPE_CHECKING:
    from transformers.trainer_callback import TrainerState

    from .loop import TrainingLoop

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"
LOOP = "loop"  # in the file of the generators: where the loop stands between two logs; transformers reads past it
AT_A_TIME = "examples_at_a_time"  # in there: what auto_find_batch_size has found; None as long as whole batches fit


def save_part(part: Any, folder: str, name: str) -> None:
    torch.save(part.state_dict(), os.path.join(folder, name))


def save_rng(folder: str, loop: TrainingLoop | None) -> None:
    """The generators' states, what the loop's loader has drawn from them, and where the loop stands."""
    more: dict[str, Any] = {}
    if loop is not None:
        position = {**loop.meter.state(), "epoch_has_ended": loop.epoch_has_ended}
        if loop.fitting is not None:
            position[AT_A_TIME] = loop.fitting.most
        more = {**loop.draws.state(), LOOP: position}
    torch.save({**rng_state(), **more}, os.path.join(folder, RNG_FILE))


def restore_progress(loop: TrainingLoop, folder: str) -> tuple[dict[str, Any] | None, bool]:
    """Weights, optimizer, schedule and loss as they were when the checkpoint was made.

    Returns:
        The random number generators' states to go on with, if the checkpoint has them; and whether the epoch of its
        step, if that was the last of one, had been ended.

    Raises:
        MisconfigurationException: if the checkpoint is damaged, or not one of this model and optimizer.
    """
    trainer, meter = loop.trainer, loop.meter
    trainer._load_from_checkpoint(folder)
    trainer._load_optimizer_and_scheduler(folder)
    trainer._load_scaler(folder)
    meter.begin_at(trainer.state.global_step)
    saved = read_rng(folder)
    position = {} if saved is None else saved.get(LOOP, {})
    if position:
        meter.load_state(position)
    return saved, position.get("epoch_has_ended", True)


def restore_part(part: Any, folder: str, name: str) -> None:
    """Raises MisconfigurationException if the file is damaged or another run's; warns if there is none."""
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
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


def note_best(state: TrainerState, folder: str, earlier: set[str]) -> None:
    """Records where the best weights are, which may be the checkpoint that is about to exist."""
    if state.best_global_step:
        best = checkpoint_folder(os.path.dirname(folder), state.best_global_step)
        if best == folder or (os.path.isdir(best) and best not in earlier):
            state.best_model_checkpoint = best
