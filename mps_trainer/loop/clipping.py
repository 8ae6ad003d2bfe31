"""Decides whether the optimizer's step clips the gradients, and clears them.

AdamW's step clips them if no code could see them before it. Otherwise `Trainer._clip_grad_norm` clips them.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from ..callbacks.events import Events
from ..model.precision import MixedPrecision
from ..optim.adamw import AdamW


class Gradients:
    """Measures, clips and clears the gradients of `model`.

    Its parameters are not listed anew in each step: torch's own functions walk through all modules at each call. They
    are listed again once the optimizer has others, because a callback may replace parameters or the optimizer.

    Args:
        clips_in_step: False if overrides clip or measure the gradients, so that AdamW's step may not clip them.
    """

    def __init__(self, model: nn.Module, events: Events, precision: MixedPrecision, clips_in_step: bool) -> None:
        self.model, self.events, self.precision = model, events, precision
        self._allowed = clips_in_step
        self._listed_for: Any = None  # the optimizer, and its parameters
        self._optimized: list[nn.Parameter] = []
        self.parameters: list[nn.Parameter] = []

    def _list_parameters(self, optimizer: Any) -> None:
        groups = getattr(optimizer, "param_groups", [])
        optimized = list(itertools.chain.from_iterable(group["params"] for group in groups))
        is_same = optimizer is self._listed_for and len(optimized) == len(self._optimized)
        if is_same and all(map(operator.is_, optimized, self._optimized)):
            return
        self._listed_for, self._optimized, self.parameters = optimizer, optimized, list(self.model.parameters())
        is_known = {id(each) for each in optimized} <= set(map(id, self.parameters))
        self._may_clip = self._allowed and type(optimizer) is AdamW and is_known

    def leave_clipping_to_step(self, optimizer: Any, max_norm: float) -> torch.Tensor | None:
        """Returns the norm of the gradients and clips them in the next step; None if the optimizer cannot clip.

        Also returns None if some code could see gradients before they are clipped: a callback around the step, a hook
        of the optimizer, or a function of the user's in the place of its step.
        """
        self._list_parameters(optimizer)
        if not self._may_clip or optimizer.is_watched() or _step_is_replaced(optimizer):
            return None
        for event in ("on_pre_optimizer_step", "on_optimizer_step"):
            if not self.events.covers(event) or self.events.has_listener(event):
                return None
        self.precision.unscale(optimizer)
        return optimizer.clip_next_step([each.grad for each in self.parameters if each.grad is not None], max_norm)

    def clear(self, optimizer: Any) -> None:
        """Sets the gradients to None and discards what the next step of `optimizer` would clip them by."""
        self._list_parameters(optimizer)
        for parameter in self.parameters:
            parameter.grad = None
        if isinstance(optimizer, AdamW):
            optimizer.clip_divisor = None


def _step_is_replaced(optimizer: AdamW) -> bool:
    """Returns True if a hook calls `optimizer.step`. The wrapper of torch's schedulers does not count."""
    step = vars(optimizer).get("step")
    return step is not None and getattr(step, "__code__", _step_is_replaced.__code__).co_filename != _SCHEDULES


_SCHEDULES = lr_scheduler.LRScheduler.step.__code__.co_filename
