"""The gradients of a run: clipped within the optimizer's step where nobody looks at them before, and cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from .adamw import AdamW

if TYPE_CHECKING:
    from .trainer import Trainer


class Gradients:
    """What the loop does to the gradients of `model`, with as few kernels and as little Python as the run allows."""

    def __init__(self, trainer: Trainer, model: nn.Module) -> None:
        self.trainer, self.model = trainer, model
        optimizer = trainer.optimizer
        groups = getattr(optimizer, "param_groups", [])
        optimized = {id(parameter) for group in groups for parameter in group["params"]}
        trainable = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        self._are_the_optimizers = optimized == trainable
        self._clips = self._are_the_optimizers and type(optimizer) is AdamW
        self._clears = self._are_the_optimizers and type(model).zero_grad is nn.Module.zero_grad

    def clip_at_step(self, max_norm: float) -> torch.Tensor | None:
        """Their norm, clipped to `max_norm` in the step that follows; None if they have to be clipped before it.

        A callback between clipping and step must see them clipped, and one after the step, too.
        """
        events = self.trainer.step_events
        watched = any(
            not events.covers(event) or events.listeners(event)
            for event in ("on_pre_optimizer_step", "on_optimizer_step")
        )
        if watched or not self._clips:
            return None
        self.trainer.accelerator.unscale_gradients()
        return self.trainer.optimizer.clip_at_step(max_norm)

    def clear(self) -> None:
        if not self._clears:
            self.model.zero_grad()
            return
        for group in self.trainer.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
