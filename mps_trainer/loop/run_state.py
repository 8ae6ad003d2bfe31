"""Holds the state of a run that is neither in the weights, the optimizer nor the schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..checkpoints.loading import EXAMPLES_AT_A_TIME
from ..data.plan import StepPlan
from .batch_source import BatchSource
from .meter import LossMeter
from .surface import TrainerSurface


class RunState:
    """Owns the position and what a signal postponed; saves and restores losses and random numbers with them.

    `snapshot` and `restore` undo an update or an evaluation that did not end: a loss that is not finite, memory that
    ran out, a signal. `state_dict` and `load_state_dict` carry the run over to the process that resumes it.

    Attributes:
        epoch, batches: the epoch, and its batches up to the last update, the one under way included.
        update_start: the batches of the epoch before the update under way.
        epoch_has_ended: True between the end of an epoch and the begin of the next.
        loader_has_ended: True if an epoch of unknown length ended because the loader gave no more batches.
        postponed: of "evaluate", "save" and "stop", what a signal, or a death, prevented after the last step.
        splits_batches: True if the run may train on fewer examples at a time than a batch has.
        examples_at_a_time: how many fit into memory, where batches were halved; else None.
        grad_norm, learning_rate: of the last update.
        first_step: the step after which this run began or resumed.
    """

    def __init__(
        self,
        trainer: TrainerSurface,
        model: nn.Module,
        plan: StepPlan,
        meter: LossMeter,
        batch_source: BatchSource,
        splits_batches: bool = False,
        examples_at_a_time: int | None = None,
    ) -> None:
        self.trainer, self.model, self.plan = trainer, model, plan
        self.meter, self.batch_source = meter, batch_source
        self.update_start, self.loader_has_ended = 0, False
        self.splits_batches, self.examples_at_a_time = splits_batches, examples_at_a_time
        self.load_state_dict({})

    def state_dict(self) -> dict[str, Any]:
        """Returns what the step number of a checkpoint does not contain. Reads losses and norm from the device."""
        return {
            **self.meter.state_dict(self.grad_norm),
            "learning_rate": None if self.learning_rate is None else float(self.learning_rate),
            "epoch_has_ended": self.epoch_has_ended,
            "loader_has_ended": self.loader_has_ended,
            "epoch": self.epoch,
            "batches": self.batches,
            "accumulation": self.plan.accumulation,
            "batches_per_epoch": self.plan.batches_per_epoch,
            "epoch_is_cut": self.trainer.control.should_epoch_stop,
            "postponed": self.postponed,
            **({EXAMPLES_AT_A_TIME: self.examples_at_a_time} if self.splits_batches else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after `state.global_step` of the Trainer. `state` is {} where none was saved."""
        step = self.first_step = self.trainer.state.global_step
        self.epoch, self.batches = self.plan.position_after(step)
        known, saved = self.plan.batches_per_epoch, state.get("accumulation", self.plan.accumulation)
        # the step does not tell the position if the length is unknown or wrong, or a callback cuts epochs or changes
        # the accumulation
        is_same = known == state.get("batches_per_epoch") and saved == self.plan.accumulation
        if "epoch" in state and (known is None or (is_same and not self.trainer.args.ignore_data_skip)):
            self.epoch, self.batches = state["epoch"], state["batches"]
            if saved != self.plan.accumulation:
                self.batches = -(-self.batches // saved) * self.plan.accumulation  # keeps the number of updates
            is_over = self.batches == known
            if known is None:  # max_steps or a callback may have ended the epoch before the stream did
                is_over = state["epoch_has_ended"] and state.get("loader_has_ended", True)
            if self.batches and (is_over or state.get("epoch_is_cut", False)):
                self.epoch, self.batches = self.epoch + 1, 0
        self.epoch_has_ended = state.get("epoch_has_ended", True)
        self.postponed: list[str] = list(state.get("postponed", []))
        self.grad_norm: torch.Tensor | float | None = state.get("grad_norm")  # a log at the end of the epoch has both
        self.learning_rate: float | None = state.get("learning_rate")
        self.meter.reset(step)
        if state:
            self.meter.load_state_dict(state)

    def snapshot(self, before_loading: bool = False, with_buffers: bool = True) -> dict[str, Any]:
        """Returns the state as it is now, for `restore`. Reads nothing from the device.

        Args:
            before_loading: True before the batches of an update are loaded; `restore` then ends the pass over the
                loader, so that these batches are loaded again.
            with_buffers: False before an evaluation, which changes no buffers of the model; they may be large.
        """
        trainer = self.trainer
        saved = {
            "position": (self.epoch, self.batches, self.epoch_has_ended, self.loader_has_ended),
            "counts": (trainer.current_flos, trainer.state.num_input_tokens_seen),
            "logs": len(trainer.state.log_history),
            "meter": self.meter.snapshot(),
            "rng": self.batch_source.snapshot(with_loading=before_loading),
            "before_loading": before_loading,
            "buffers": _buffers(self.model) if with_buffers else [],
        }
        if before_loading:
            saved["position"] = (self.epoch, self.batches, not self.update_start, self.loader_has_ended)
        return saved

    def restore(self, saved: dict[str, Any]) -> None:
        """Returns to the state that `snapshot` returned."""
        trainer = self.trainer
        self.batch_source.load_snapshot(saved["rng"], with_loading=saved["before_loading"])
        self.epoch, self.batches, self.epoch_has_ended, self.loader_has_ended = saved["position"]
        trainer.current_flos, trainer.state.num_input_tokens_seen = saved["counts"]
        del trainer.state.log_history[saved["logs"] :]  # in place, because a callback may hold the list
        self.meter.restore(saved["meter"])
        with torch.no_grad():
            for buffer, value in saved["buffers"]:
                buffer.copy_(value)


def _buffers(model: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns each buffer that a forward pass may change, such as the means of a BatchNorm, with a copy of it."""
    return [
        (buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
