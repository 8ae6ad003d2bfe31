"""Checkpoints: the files of a run at one step, written, found, read and rotated.

Names and contents are transformers', so that tools which read its checkpoints read these.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from typing import TYPE_CHECKING

import torch

from ..errors import MisconfigurationException
from .files import read_json, read_safetensors, read_tensors, write_json
from .meter import LossMeter
from .rng import FILE as RNG_FILE
from .rng import rng_state

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"
STATE = "trainer_state.json"
LOSS = "loss_state.json"  # the loss since the last log; transformers has no such file
_FOLDER = re.compile(r"checkpoint-(\d+)")


def save(trainer: Trainer, meter: LossMeter) -> str:
    """Writes `checkpoint-<step>` into the output folder and removes those beyond the limit.

    The files are written to a folder beside it, which then takes the name: a checkpoint that exists is whole.
    """
    args, step = trainer.args, trainer.state.global_step
    folder = os.path.join(args.output_dir, f"checkpoint-{step}")
    if not args.should_save:
        return folder
    unfinished = os.path.join(args.output_dir, f"tmp-checkpoint-{step}")
    shutil.rmtree(unfinished, ignore_errors=True)
    trainer.store_flos()
    trainer.save_model(unfinished)
    _note_best(trainer, folder)
    if not args.save_only_model:
        torch.save(trainer.optimizer.state_dict(), os.path.join(unfinished, OPTIMIZER))
        torch.save(trainer.lr_scheduler.state_dict(), os.path.join(unfinished, SCHEDULER))
        if trainer.precision.scaler is not None:
            torch.save(trainer.precision.scaler.state_dict(), os.path.join(unfinished, SCALER))
        torch.save(rng_state(), os.path.join(unfinished, RNG_FILE))
        write_json(os.path.join(unfinished, LOSS), meter.state())
    trainer.state.stateful_callbacks = trainer.new_state().stateful_callbacks
    trainer.state.save_to_json(os.path.join(unfinished, STATE))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(unfinished, folder)
    _rotate(args.output_dir, args.save_total_limit, trainer.state.best_model_checkpoint)
    return folder


def restore_progress(trainer: Trainer, meter: LossMeter, folder: str) -> None:
    """Weights, optimizer, schedule and loss as they were when the checkpoint was made.

    Raises:
        MisconfigurationException: if the checkpoint is not one of this model and optimizer.
    """
    load_weights(trainer.model, folder)
    meter.begin_at(trainer.state.global_step)
    parts = {OPTIMIZER: trainer.optimizer, SCHEDULER: trainer.lr_scheduler, SCALER: trainer.precision.scaler}
    for name, part in parts.items():
        path = os.path.join(folder, name)
        if part is None:
            continue
        if not os.path.isfile(path):
            logger.warning("%s has no %s: that part of the run starts anew.", folder, name)
            continue
        saved = read_tensors(path)
        try:
            part.load_state_dict(saved)
        except (ValueError, KeyError) as error:
            raise MisconfigurationException(
                f"{path} does not belong to this run: {error}. Resume with the model and optimizer that it was saved "
                "from, or train from the beginning."
            ) from error
    if os.path.isfile(path := os.path.join(folder, LOSS)):
        meter.load_state(read_json(path))


def load_weights(model: torch.nn.Module, folder: str) -> None:
    """Loads a checkpoint's safetensors into `model`.

    Raises:
        MisconfigurationException: if there are none, or they are another model's.
    """
    index = os.path.join(folder, "model.safetensors.index.json")
    files = sorted(set(read_json(index)["weight_map"].values())) if os.path.isfile(index) else ["model.safetensors"]
    weights: dict[str, torch.Tensor] = {}
    for name in files:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise MisconfigurationException(
                f"{folder} is not a checkpoint with weights: it has no {name}. "
                "Name a folder checkpoint-<step> that the Trainer wrote."
            )
        weights.update(read_safetensors(path))
    try:
        result = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # a shape that does not fit
        raise MisconfigurationException(f"The weights in {folder} are another model's: {error}") from error
    missing = set(result.missing_keys) - _sharing_memory_with_loaded(model, weights)
    if missing or result.unexpected_keys:
        names = sorted(missing) + sorted(result.unexpected_keys)
        raise MisconfigurationException(
            f"The weights in {folder} are another model's: {len(missing)} of this model's parameters are missing and "
            f"{len(result.unexpected_keys)} are unknown to it, {names[0]} for one."
        )


def find_checkpoints(output_dir: str) -> list[str]:
    """Checkpoint folders in `output_dir`, the oldest step first."""
    if not os.path.isdir(output_dir):
        return []
    steps = sorted(
        int(match[1])
        for name in os.listdir(output_dir)
        if (match := _FOLDER.fullmatch(name)) and os.path.isdir(os.path.join(output_dir, name))
    )
    return [os.path.join(output_dir, f"checkpoint-{step}") for step in steps]


def checkpoint_to_resume(requested: str | bool | None, output_dir: str) -> str | None:
    """The folder to resume from: the one named, the newest in `output_dir` for True, or None.

    Raises:
        MisconfigurationException: if there is no such checkpoint.
    """
    if requested is None or requested is False:
        return None
    if requested is True:
        found = find_checkpoints(output_dir)
        if not found:
            raise MisconfigurationException(
                f"There is no checkpoint in {output_dir} to resume from. Train without resume_from_checkpoint, or "
                "give output_dir the folder of the run to continue."
            )
        return found[-1]
    folder = os.fspath(requested)
    if not os.path.isfile(os.path.join(folder, STATE)):
        why = f"it has no {STATE}" if os.path.isdir(folder) else "there is no such folder"
        raise MisconfigurationException(
            f"Cannot resume from {folder}: {why}. Name a folder checkpoint-<step> that the Trainer wrote."
        )
    return folder


def _note_best(trainer: Trainer, folder: str) -> None:
    """Records where the best weights are, which may be the checkpoint that is about to exist."""
    state = trainer.state
    if state.best_global_step:
        best = os.path.join(trainer.args.output_dir, f"checkpoint-{state.best_global_step}")
        if best == folder or os.path.isdir(best):
            state.best_model_checkpoint = best


def _rotate(output_dir: str, limit: int | None, best: str | None) -> None:
    if not limit:
        return
    found = find_checkpoints(output_dir)
    kept = {found[-1], best}
    removable = [folder for folder in found if folder not in kept]
    excess = len(found) - max(limit, len([folder for folder in found if folder in kept]))
    for folder in removable[: max(excess, 0)]:
        logger.info("Removing %s: save_total_limit is %d.", folder, limit)
        shutil.rmtree(folder)


def _sharing_memory_with_loaded(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> set[str]:
    """Names that are absent from a file because they are tied to a parameter that is in it."""
    state = model.state_dict(keep_vars=True)
    loaded = {state[name].data_ptr() for name in weights if name in state}
    return {name for name, tensor in state.items() if tensor.data_ptr() in loaded}
