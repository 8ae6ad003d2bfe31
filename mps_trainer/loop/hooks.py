"""Holds the methods of the Trainer that a run calls, bound, so that overrides in a subclass are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat

import torch
from torch import nn
from transformers.trainer_utils import TrainOutput


class Stateful(Protocol):
    """An object whose state can be saved and loaded again."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


@dataclass(frozen=True)
class StatePair:
    """Builds a `Stateful` from two functions."""

    state_dict: Callable[[], Any]
    load_state_dict: Callable[[Any], None]


@dataclass(frozen=True)
class Hooks:
    """Holds the Trainer's methods for batches, updates and the work in between.

    Args:
        get_batch_samples: `(iterator, number, device) -> (batches, items)`: the batches of an update.
        divisors: `batches -> list`: the divisor for the loss of each; None for one without a loss.
        item_counts: `batches -> list`: the items in each, None where unknown.
        split_batch: `(batch, most) -> batches` of at most so many examples.
        training_step: `(model, batch, items, divisor, batches in the update) -> loss`: forward and backward.
        take_part: `(model, batch, items)`: a backward pass that adds nothing, for the processes that wait for it.
        count_batch: `batch`: counts its tokens and operations.
        clip_grad_norm: `model -> norm`.
        get_grad_norm: `(model, norm after clipping) -> norm` to log.
        get_learning_rate: `() -> rate` to log.
        log_evaluate_save: `(loss, norm, epoch, start time, learning rate)`: what the callbacks asked for.
        evaluate_at_start: the evaluation before the first step.
        log: `(logs, start time)`.
        store_flos: adds what was counted to the state.
        finalize_training: `(examples of all steps, start time) -> output`: what comes after the last step.
    """

    get_batch_samples: Callable[[Iterator[Any], int, torch.device], tuple[list[Any], Any]]
    divisors: Callable[[list[Any]], Sequence[SupportsFloat | None]]
    item_counts: Callable[[list[Any]], list[int | None]]
    split_batch: Callable[[Any, int], list[Any]]
    training_step: Callable[[nn.Module, Any, Any, SupportsFloat, int], torch.Tensor]
    take_part: Callable[[nn.Module, Any, Any], None]
    count_batch: Callable[[Any], None]
    clip_grad_norm: Callable[[nn.Module], Any]
    get_grad_norm: Callable[[nn.Module, Any], Any]
    get_learning_rate: Callable[[], float]
    log_evaluate_save: Callable[[Any, Any, float | None, float, float | None], None]
    evaluate_at_start: Callable[[], Any]
    log: Callable[[dict[str, float], float], None]
    store_flos: Callable[[], None]
    finalize_training: Callable[[float, float], TrainOutput]


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
