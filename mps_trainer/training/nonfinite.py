"""What a run does about a loss or gradient norm that is no finite number: say so, or with `stop_on_nan` stop."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..checkpoints import folders
from ..checkpoints.rng import rng_state, set_rng
from ..errors import NonFiniteLossError
from ..guards.numbers import OVERFLOWS, NonFinite
from .gathered import local

if TYPE_CHECKING:
    from .loop import TrainingLoop

logger = logging.getLogger(__name__)


def tell(loop: TrainingLoop) -> None:
    """Warns of the first such number since this was last called."""
    found, steps = loop.meter.watch.take()
    if found is None:
        return
    happened = _happened(loop, found, found.rate)
    loop.trainer.note_event("warning", f"The {happened}")
    more = "" if steps == 1 else f" It is the first of {steps} such steps since the last log."
    logger.warning(
        "The %s%s What to do: %s, or look at those examples. With stop_on_nan=True a run ends before such a step, "
        "with a checkpoint to go on from.",
        happened,
        more,
        _remedy(loop),
    )


def _happened(loop: TrainingLoop, found: NonFinite, rate: float | None) -> str:
    origin, scaled = loop.trail.origin(found.step), loop.meter.watch.scaled
    was = f"{found.what} was {found.value} at step {found.step + 1}"
    if scaled and found.what != "loss":
        was += f", in the last of {OVERFLOWS} steps in a row that the scaler of fp16 left out"
    at = "" if rate is None else f"learning rate {rate:g}, "
    return f"{was} ({at}{origin})."


def _remedy(loop: TrainingLoop) -> str:
    return "lower learning_rate" + (", use bf16 instead of fp16" if loop.args.mixed_precision == "fp16" else "")


class Before:
    """The run as it stands before an update, and back there.

    Weights, optimizer and schedule are not among what is kept: nothing changes them before the update is made.
    """

    def __init__(self, loop: TrainingLoop, done: int) -> None:
        """`done` batches of the epoch were used; none of the update's have been asked for."""
        trainer, resumed = loop.trainer, loop.rng
        # a resumed run may not have set the generators yet: then they stand where its checkpoint says
        self.rng: dict[str, Any] = rng_state() if resumed is None else resumed
        self.draws = loop.draws.state()
        self.meter = loop.meter.state()
        self.here = loop.here
        self.epoch_has_ended = not done
        self.flos, self.tokens = trainer.current_flos, trainer.state.num_input_tokens_seen
        self.buffers = [(buffer, buffer.clone()) for buffer in _saved_buffers(trainer.model)]

    def restore(self, loop: TrainingLoop) -> None:
        trainer = loop.trainer
        set_rng(self.rng)
        loop.draws.rewind(self.draws)
        loop.meter.load_state(self.meter)
        loop.here = self.here
        loop.epoch_has_ended = self.epoch_has_ended
        trainer.current_flos, trainer.state.num_input_tokens_seen = self.flos, self.tokens
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)


def _saved_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Those that a checkpoint has, such as the running means of a BatchNorm, which a forward pass changes."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]


class StopOnNan:
    """Looks at each update before it is made, for one wait, and stops the run at the first that would do harm."""

    def __init__(self, loop: TrainingLoop) -> None:
        self.loop = loop
        self._before: Before | None = None

    def begin_update(self, done: int) -> None:
        self._before = Before(self.loop, done)

    def check(self, grad_norm: Any) -> float | None:
        """The norm of the gradients as a number.

        Raises:
            NonFiniteLossError: if it, or a loss of the update, is not finite. Everything is as before the update then,
                and in a checkpoint.
        """
        loop = self.loop
        norm = loop.meter.settle(grad_norm, loop.state.global_step)
        if loop.meter.watch.first is not None:
            found, _ = loop.meter.watch.take()
            assert found is not None
            raise self._stop(found)
        return norm

    def _stop(self, found: NonFinite) -> NonFiniteLossError:
        loop, trainer = self.loop, self.loop.trainer
        step, rate = found.step, trainer._get_learning_rate()
        happened = _happened(loop, found, rate)
        loop.gradients.discard()
        trainer.precision.abandon_step()
        assert self._before is not None
        self._before.restore(loop)
        checkpoint, saved = self._checkpoint(step)
        remedy = f"What to do: {_remedy(loop)}, or look at those examples"
        then = "." if checkpoint is None else f"; then go on with resume_from_checkpoint={checkpoint!r}."
        message = f"The {happened} That step was not made. {saved} {remedy}{then}"
        return NonFiniteLossError(message, step + 1, rate, loop.trail.origin(step).rows, checkpoint)

    def _checkpoint(self, step: int) -> tuple[str | None, str]:
        """The folder to go on from, and what to say of it."""
        loop, trainer = self.loop, self.loop.trainer
        run_dir = trainer._get_output_dir(loop.trial)
        if trainer.processes.highest([not _are_finite(trainer.model)])[0]:  # of a sharded model, in any part
            # saved now, they could push out a checkpoint that is worth more
            trainer.finish_save()
            newest = next(reversed(folders.find_checkpoints(run_dir)), None)
            return newest, f"The weights after step {step} are not finite either, so they were not saved."
        trainer._save_checkpoint(loop.model, loop.trial)
        if not loop.args.should_save:
            return None, "The main process has saved a checkpoint of before it."
        trainer.tell_saved(loop.trial)
        trainer.finish_save()
        folder = folders.checkpoint_folder(run_dir, step)
        return (
            (folder, f"{folder} is the run before it.") if os.path.isdir(folder) else (None, "No checkpoint is left.")
        )


def _are_finite(model: nn.Module) -> bool:
    return all(
        bool(torch.isfinite(local(parameter)).all())
        for parameter in model.parameters()
        if parameter.is_floating_point()
    )
