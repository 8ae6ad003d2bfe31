"""Creates `trainer.state` at the start of a run, new or from a checkpoint, and restores the callbacks' states."""

from __future__ import annotations

import dataclasses
import logging
import ntpath
import os
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerControl, TrainerState
from transformers.trainer_utils import compare_trainer_and_checkpoint_args

from ..callbacks.events import Events, FiringTrainer
from ..checkpoints.files import damaged
from ..checkpoints.loading import read_state
from ..checkpoints.manifest import STATE
from ..checkpoints.usable_states import require_exported
from ..errors import MisconfigurationException
from .surface import TrainerSurface

logger = logging.getLogger(__name__)
of_transformers = logging.getLogger("transformers.trainer")  # its users look for these lines under its name


class CallbackStateError(MisconfigurationException):
    """A callback cannot load its state from a checkpoint."""


def new_state(events: Events) -> TrainerState:
    """Returns a state at step 0 with the states of the callbacks."""
    state = TrainerState()
    state.stateful_callbacks = events.stateful_callbacks()
    return state


def init_state(
    trainer: TrainerSurface, resume_from: str | None, max_steps: int, splits_batches: bool = False, **settings: Any
) -> None:
    """Initialises the state of the Trainer for a new run, or from the checkpoint `resume_from`.

    Args:
        splits_batches: True if the run may resume with another batch size by itself.
        settings: more fields of the state, which a checkpoint does not decide.
    """
    trainer.state = new_state(trainer._mt_events)
    if resume_from is not None:
        _load_state(trainer, resume_from, splits_batches)
    for name, value in {"max_steps": max_steps, **settings}.items():
        setattr(trainer.state, name, value)
    trainer.state.compute_steps(trainer.args, max_steps)


def _load_state(trainer: TrainerSurface, folder: str, splits_batches: bool) -> None:
    """Loads the state of a checkpoint, and warns about changed arguments and missing callbacks."""
    saved = read_state(folder)
    fields = {field.name for field in dataclasses.fields(TrainerState)}
    known = {name: value for name, value in saved.items() if name in fields}
    callbacks = known.pop("stateful_callbacks", None) or {}
    state = trainer.state = TrainerState(**{**known, "stateful_callbacks": None})
    _find_best_checkpoint(state, folder)
    if state.train_batch_size is not None and not splits_batches:
        compare_trainer_and_checkpoint_args(trainer.args, state)
    state.stateful_callbacks = callbacks
    try:
        trainer._load_callback_state()
    except CallbackStateError as error:
        raise damaged(os.path.join(folder, STATE), error) from error.__cause__
    trainer.state.stateful_callbacks = trainer._mt_events.stateful_callbacks()


def _find_best_checkpoint(state: TrainerState, folder: str) -> None:
    """Looks for the best checkpoint in its place and next to `folder`, and clears it if it is in neither.

    A relative path is looked for next to `folder` first, because this run may have another working folder. The path
    may be of another system: on macOS, one of Windows is found next to `folder` only.
    """
    best = state.best_model_checkpoint
    if best is None:
        return
    name = ntpath.basename(best.rstrip("/\\"))  # ntpath knows the separators of Windows and of all other systems
    beside = os.path.join(os.path.dirname(os.path.normpath(folder)), name)
    places = (best, beside) if os.path.isabs(best) else (beside, best)
    state.best_model_checkpoint = next(filter(os.path.isdir, places), None)
    if state.best_model_checkpoint is None:
        logger.warning("The best checkpoint, %s, no longer exists: the next best replaces it.", best)
        state.best_metric = state.best_global_step = None


def load_callbacks(trainer: FiringTrainer) -> None:
    """Restores the callbacks from `stateful_callbacks` of the run's state.

    Raises:
        CallbackStateError: for a state that a callback does not take.
    """
    present = [*trainer.callback_handler.callbacks, trainer.control]
    for name, saved in trainer.state.stateful_callbacks.items():
        same = [part for part in present if isinstance(part, ExportableState) and type(part).__name__ == name]
        if not same:
            of_transformers.warning(
                f"The checkpoint has the state of a callback {name}, which this run does not have."
            )
        entries = saved if isinstance(saved, list) else [saved]  # a list where there were several of the class
        for part, entry in zip(same, entries, strict=False):
            try:
                require_exported(entry, part)
                again: Any = type(part)(**entry.get("args", {}))
            except Exception as error:
                raise CallbackStateError(f"{name} cannot load its state: {error}") from error
            vars(again).update(entry.get("attributes", {}))
            _replace(trainer, part, again)


def _replace(trainer: FiringTrainer, old: Any, new: Any) -> None:
    if isinstance(old, TrainerControl):
        trainer.control = new
    else:
        trainer.callback_handler.callbacks.remove(old)
        trainer.callback_handler.callbacks.append(new)  # the last to be called from here on, as in transformers
