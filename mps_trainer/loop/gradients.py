"""Clips and clears the gradients of a run. Clipping is part of the optimizer's step if no code reads them before."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from ..optim.adamw import AdamW
from .accelerate_facade import Accelerator
from .surface import TrainerSurface


class Gradients:
    """Clips and clears the gradients of `model`, with as few kernels and as little Python as the run allows."""

    def __init__(self, trainer: TrainerSurface, model: nn.Module) -> None:
        self.trainer, self.model = trainer, model
        self._inspect(trainer.optimizer)

    @property
    def optimizer(self) -> Any:
        """The optimizer of the Trainer, which a callback may replace."""
        optimizer = self.trainer.optimizer
        if optimizer is not self._optimizer:
            self._inspect(optimizer)
        return optimizer

    def _inspect(self, optimizer: Any) -> None:
        """Determines which fused steps this optimizer supports."""
        self._optimizer, model, accelerator = optimizer, self.model, self.trainer.accelerator
        overrides = self.trainer._mt_overrides
        groups = getattr(optimizer, "param_groups", [])
        optimized = {id(parameter) for group in groups for parameter in group["params"]}
        parameters = list(model.parameters())
        self._others = [parameter for parameter in parameters if id(parameter) not in optimized]
        has_all = optimized <= {id(parameter) for parameter in parameters}
        as_usual = type(accelerator) is Accelerator and "clip_grad_norm_" not in vars(accelerator)
        self._may_clip = (
            has_all
            and type(optimizer) is AdamW
            and as_usual
            and overrides.allow("clipping within the optimizer's step", "_clip_grad_norm", "_get_grad_norm")
        )
        self._may_clear = has_all and type(model).zero_grad is nn.Module.zero_grad

    def clip_at_step(self, max_norm: float) -> torch.Tensor | None:
        """Returns the norm of the gradients and clips them in the next step; None if the optimizer cannot clip.

        It does not where code would see gradients that are not clipped yet: a callback around the step, or a function
        of the user's in the place of the optimizer's step.
        """
        events, optimizer = self.trainer._mt_events, self.optimizer
        watched = any(
            not events.covers(event) or events.has_listener(event)
            for event in ("on_pre_optimizer_step", "on_optimizer_step")
        )
        if watched or not self._may_clip or self._others_are_trained() or _step_is_replaced(optimizer):
            return None
        self.trainer.accelerator.unscale_gradients()
        return optimizer.clip_at_step(max_norm)

    def clear(self) -> None:
        """Sets the gradients to None."""
        optimizer = self.optimizer
        if not self._may_clear or self._others_are_trained():
            self.model.zero_grad()
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def discard(self) -> None:
        """Clears the gradients and the pending clip factor."""
        self.clear()
        if isinstance(optimizer := self.optimizer, AdamW):
            optimizer.forget_clipping()

    def _others_are_trained(self) -> bool:
        """Returns True if parameters outside the optimizer have gradients, as after unfreezing layers in a run."""
        return any(parameter.requires_grad for parameter in self._others)


def _step_is_replaced(optimizer: AdamW) -> bool:
    """Returns True if a hook calls `optimizer.step`. The wrapper of torch's schedulers does not count."""
    step = vars(optimizer).get("step")
    return step is not None and getattr(step, "__code__", None) not in _codes_of_schedules()


@functools.cache
def _codes_of_schedules() -> set[object]:
    """Returns the code of the function with which torch's schedulers replace `step`."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    step = vars(optimizer).get("step")
    return set() if step is None else {step.__code__}
