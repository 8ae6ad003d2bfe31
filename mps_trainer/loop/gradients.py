"""Clips and clears the gradients of a run. Clipping is part of the optimizer's step if no code reads them before."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from ..optim.adamw import AdamW
from .surface import TrainerSurface


class Gradients:
    """Clips and clears the gradients of `model`.

    Its parameters are not listed anew in each step: torch's own functions walk through all modules at each call.
    """

    def __init__(self, trainer: TrainerSurface, model: nn.Module) -> None:
        self.trainer, self.model = trainer, model
        self._allowed = isinstance(trainer.optimizer, AdamW) and not trainer._mt_compat.clips
        self._listed_for: Any = None  # the optimizer, and how many parameters it had
        self._list_parameters()

    def _list_parameters(self) -> None:
        """Lists the parameters again if a callback has replaced the optimizer or given it more parameters."""
        optimizer = self.trainer.optimizer
        groups = [group["params"] for group in getattr(optimizer, "param_groups", [])]
        if self._listed_for == (listed_for := (optimizer, sum(map(len, groups)))):
            return
        self._listed_for, self.parameters = listed_for, list(self.model.parameters())
        optimized = {id(each) for group in groups for each in group}
        is_known = optimized <= set(map(id, self.parameters))
        self._may_clip = self._allowed and type(optimizer) is AdamW and is_known

    def leave_clipping_to_step(self, max_norm: float) -> torch.Tensor | None:
        """Returns the norm of the gradients and clips them in the next step; None if the optimizer cannot clip.

        It does not where code would see gradients that are not clipped yet: a callback around the step, a hook of the
        optimizer, or a function of the user's in the place of its step.
        """
        events, optimizer = self.trainer._mt_events, self.trainer.optimizer
        self._list_parameters()
        if not self._may_clip or optimizer.is_watched() or _step_is_replaced(optimizer):
            return None
        for event in ("on_pre_optimizer_step", "on_optimizer_step"):
            if not events.covers(event) or events.has_listener(event):
                return None
        self.trainer._mt_precision.unscale(optimizer)
        return optimizer.clip_next_step([each.grad for each in self.parameters if each.grad is not None], max_norm)

    def clear(self) -> None:
        """Sets the gradients to None and discards what the next step would clip them by."""
        self._list_parameters()
        for parameter in self.parameters:
            parameter.grad = None
        if isinstance(self.trainer.optimizer, AdamW):
            self.trainer.optimizer.clip_divisor = None


def _step_is_replaced(optimizer: AdamW) -> bool:
    """Returns True if a hook calls `optimizer.step`. The wrapper of torch's schedulers does not count."""
    step = vars(optimizer).get("step")
    return step is not None and getattr(step, "__code__", _step_is_replaced.__code__).co_filename != _SCHEDULES


_SCHEDULES = lr_scheduler.LRScheduler.step.__code__.co_filename
