"""The gradients of a run: clipped within the optimizer's step where nobody looks at them before, and cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import lr_scheduler

from .accelerator import Accelerator
from .adamw import AdamW

if TYPE_CHECKING:
    from .trainer import Trainer


class Gradients:
    """What the loop does to the gradients of `model`, with as few kernels and as little Python as the run allows."""

    def __init__(self, trainer: Trainer, model: nn.Module) -> None:
        self.trainer, self.model = trainer, model
        groups = getattr(trainer.optimizer, "param_groups", [])
        optimized = {id(parameter) for group in groups for parameter in group["params"]}
        parameters = list(model.parameters())
        self._others = [parameter for parameter in parameters if id(parameter) not in optimized]
        has_all = optimized <= {id(parameter) for parameter in parameters}
        self._may_clip = has_all and type(trainer.optimizer) is AdamW and _clips_as_usual(trainer)
        self._may_clear = has_all and type(model).zero_grad is nn.Module.zero_grad

    def clip_at_step(self, max_norm: float) -> torch.Tensor | None:
        """Their norm, clipped to `max_norm` in the step that follows; None if they have to be clipped before it.

        A callback between clipping and step must see them clipped, and one after the step, too; so must who has put a
        function of his own in the place of the optimizer's step.
        """
        events = self.trainer.step_events
        watched = any(
            not events.covers(event) or events.has_listener(event)
            for event in ("on_pre_optimizer_step", "on_optimizer_step")
        )
        if watched or not self._may_clip or self._others_are_trained() or _step_is_replaced(self.trainer.optimizer):
            return None
        self.trainer.accelerator.unscale_gradients()
        return self.trainer.optimizer.clip_at_step(max_norm)

    def clear(self) -> None:
        if not self._may_clear or self._others_are_trained():
            self.model.zero_grad()
            return
        for group in self.trainer.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def discard(self) -> None:
        """Clears them, and what the next step was to do with them."""
        self.clear()
        if isinstance(self.trainer.optimizer, AdamW):
            self.trainer.optimizer.forget_clipping()

    def _others_are_trained(self) -> bool:
        """Whether there are gradients that the optimizer does not know: layers may be thawed during a run."""
        return any(parameter.requires_grad for parameter in self._others)


def _clips_as_usual(trainer: Trainer) -> bool:
    from .trainer import Trainer

    kind, accelerator = type(trainer), trainer.accelerator
    return (
        kind._clip_grad_norm is Trainer._clip_grad_norm
        and kind._get_grad_norm is Trainer._get_grad_norm
        and type(accelerator) is Accelerator
        and "clip_grad_norm_" not in vars(accelerator)
    )


def _step_is_replaced(optimizer: AdamW) -> bool:
    """Whether somebody calls the step for us; a schedule does, and only notes that it was called."""
    step = vars(optimizer).get("step")
    return step is not None and getattr(step, "__code__", None) not in _OF_SCHEDULES


def _codes_of_schedules() -> set[object]:
    """The code of the function that torch's schedules put in the place of a step."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    step = vars(optimizer).get("step")
    return set() if step is None else {step.__code__}


_OF_SCHEDULES = _codes_of_schedules()
