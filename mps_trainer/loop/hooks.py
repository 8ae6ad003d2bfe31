"""Holds the methods with which checkpoints are saved and loaded, bound, so that overrides are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class SavingHooks:
    """Holds the Trainer's methods that write the files of a checkpoint, and those called afterwards.

    Args:
        save_model, save_optimizer_and_scheduler, save_scaler, save_rng_state: `folder`: write their files.
        rotate_checkpoints: `(output_dir=..., state=...)`: removes older checkpoints.
        push_from_checkpoint: `folder`: uploads a checkpoint that is complete.
    """

    save_model: Callable[..., None]
    save_optimizer_and_scheduler: Callable[[str], None]
    save_scaler: Callable[[str], None]
    save_rng_state: Callable[[str], None]
    rotate_checkpoints: Callable[..., None]
    push_from_checkpoint: Callable[[str], None]


@dataclass(frozen=True)
class Checkpointing:
    """Saves and loads the checkpoints of a run.

    Args:
        save: writes the checkpoint of the step that is done, and tells the callbacks.
        save_again: tries once more where the last one could not be written.
        poll: notes whether the checkpoint that is written in the background is done.
        wait: waits for it.
        folder: `() -> path` of the checkpoint of the step that is done, whether or not it exists.
        is_saved: `() -> bool`: that checkpoint exists, for all processes.
        newest: `() -> path` of the newest checkpoint of the run, None if there is none.
        unsaved: `() -> text`: what became of the last checkpoint, if the disk did not take it.
        load: `folder`: loads weights, optimizer, schedule and scaler.
        load_rng: `folder`: sets the random number generators.
    """

    save: Callable[[], None]
    save_again: Callable[[], None]
    poll: Callable[[], None]
    wait: Callable[[], None]
    folder: Callable[[], str]
    is_saved: Callable[[], bool]
    newest: Callable[[], str | None]
    unsaved: Callable[[], str | None]
    load: Callable[[str], None]
    load_rng: Callable[[str], None]
