"""Tracks the phase of a training step: forward, backward, optimizer, evaluation."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...utils.attributes import attributes_replaced


class Phases:
    """Follows calls of modules and optimizers while it is entered.

    A module called without gradients is evaluation; what runs without gradients between a backward pass and the end of
    the optimizer's step, such as clipping, is the optimizer's.

    Args:
        entered: called with each module that no other module calls, its inputs by the names that its forward() gives
            them, and whether gradients are on.
    """

    def __init__(
        self,
        entered: Callable[[nn.Module, dict[str, Any], bool], None],
        stepping: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        self._entered = entered
        self._stepping = stepping
        self._named: list[str] = []
        self._depth = 0
        self._module_phase = "forward"
        self._in_optimizer = False
        self._after_backward = False
        self._undo = contextlib.ExitStack()

    def now(self) -> str:
        if self.in_backward():
            self._after_backward = True
            return "backward"
        if self._in_optimizer:
            return "optimizer"
        if self._named:
            return self._named[-1]
        if self._depth == 0 and self._after_backward and not torch.is_grad_enabled():
            return "optimizer"
        return self._module_phase

    def in_backward(self) -> bool:
        return torch._C._current_graph_task_id() != -1

    def in_backward_of_torch(self) -> bool:
        """Returns True if torch's own formula computes a gradient: not a Function of Python, and not a forward pass
        that is run again for its activations."""
        if not self.in_backward() or torch.is_grad_enabled():
            return False
        return not isinstance(torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction)

    @contextlib.contextmanager
    def named(self, phase: str) -> Iterator[None]:
        self._named.append(phase)
        try:
            yield
        finally:
            self._named.pop()

    def __enter__(self) -> Phases:
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and not self.in_backward():  # a backward pass only computes activations again
                training = torch.is_grad_enabled()
                self._module_phase = "forward" if training else "evaluation"
                self._after_backward = False
                self._entered(module, _named_inputs(module, args, kwargs), training)
            self._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1

        self._undo.enter_context(attributes_replaced([(nn.Module, "__call__", call)]))
        self._undo.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.callback(register_optimizer_step_post_hook(self._after_step).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._undo.close()
        self._depth, self._in_optimizer, self._after_backward = 0, False, False

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepping(optimizer)
        self._in_optimizer = True

    def _after_step(self, *_: Any) -> None:
        self._in_optimizer = self._after_backward = False


def _named_inputs(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    if not args:
        return kwargs
    try:
        return dict(inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # forward() does not take them, and will say so
        return {**{str(i): value for i, value in enumerate(args)}, **kwargs}
