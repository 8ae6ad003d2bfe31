"""Runs AdamW and gradient clipping in a few kernels for any number of parameters.

On mps each kernel costs its launch. torch's fused AdamW there still counts its steps one parameter at a time, and
clipping takes two kernels for each.

Gain, by `python -m benchmarks.patches`: a step of a small BERT has 145 operators, without this 268.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from ..devices.accelerators import ACCELERATORS

_EPSILON = 1e-6  # what clip_grad_norm_ adds to the norm that it divides by
_JOINED = 2**24  # elements: gradients are joined in pieces of at most this, so that little memory goes into it
_ALONE = 2**22  # elements from which on a gradient is not worth copying
_JOINED_ON_CPU = 2**16  # elements up to which the CPU is faster with one piece than with each gradient by itself
_options = operator.itemgetter("fused", "amsgrad", "maximize", "capturable", "differentiable")
_USUAL = (True, False, False, False, False)  # the options that `_step_in_few_kernels` has


def total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Returns the 2-norm of all `gradients`, on their device and in their format, as torch's get_total_norm does.

    In pieces that are joined first where a kernel costs more than a copy: on mps, and for few numbers on the CPU.
    """
    if not gradients or any(gradient.layout != torch.strided for gradient in gradients):
        return torch.nn.utils.get_total_norm(gradients)
    device, dtype = gradients[0].device, gradients[0].dtype
    on_cpu = device.type == "cpu" and sum(gradient.numel() for gradient in gradients) <= _JOINED_ON_CPU
    if not (on_cpu or device.type == "mps") or any(g.dtype != dtype or g.device != device for g in gradients):
        return torch.nn.utils.get_total_norm(gradients)
    norms = [torch.linalg.vector_norm(piece) for piece in _pieces(gradients)]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _pieces(gradients: list[torch.Tensor]) -> Iterable[torch.Tensor]:
    """Returns `gradients` concatenated to vectors, with large ones unchanged."""
    waiting: list[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        number = gradient.numel()
        if number >= _ALONE:
            yield gradient
            continue
        if size + number > _JOINED:
            yield torch.cat(waiting)
            waiting, size = [], 0
        waiting.append(gradient.reshape(-1))
        size += number
    if waiting:
        yield waiting[0] if len(waiting) == 1 else torch.cat(waiting)


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)` that counts all steps in one kernel, and clips gradients within the step.

    State dictionaries are that class's, in both directions. A group with amsgrad or another unusual option, or with
    parameters of several formats, is left to torch.
    """

    _counts: torch.Tensor | None = None  # the steps of the parameters; the "step" of each state is an element
    _steps: tuple[torch.Tensor, ...] = ()  # these elements
    _clip_divisor: torch.Tensor | None = None

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings)
        devices = [parameter.device for group in self.param_groups for parameter in group["params"]]
        # a kernel that ignores the divisor cannot clip, and a scaler of float16 has to look at found_inf by itself
        self._step_supports_amp_scaling = all(
            device.type in ACCELERATORS and ACCELERATORS[device.type].divides_gradients(torch.__version__)
            for device in devices[:1]
        )

    def clip_at_step(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> torch.Tensor | None:
        """Makes the next step scale the gradients of `parameters` to a norm of at most `max_norm`.

        Returns:
            Their norm now, on their device. None if the kernel cannot scale, or hooks of the step would see gradients
            that are not clipped: clip them with clip_grad_norm_.
        """
        if self._has_hooks() or not getattr(self, "_step_supports_amp_scaling", False):
            return None
        with torch.no_grad():
            norm = total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
            # (norm + epsilon) / max_norm, not the inverse: the kernel divides, as it does for the scale of float16
            self._clip_divisor = torch.add(norm.float(), _EPSILON).div_(max_norm).clamp_(min=1.0)
        return norm

    def discard_clipping(self) -> None:
        """Discards the pending clip factor when no step follows `clip_at_step`."""
        self._clip_divisor = None

    def _has_hooks(self) -> bool:
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one update. Returns the value of `closure`."""
        if self._has_hooks() or torch.autograd._profiler_enabled():
            return _step_with_hooks(self, closure)
        return self._own_step(closure)

    step.hooked = True  # type: ignore[attr-defined] # torch need not wrap it, which takes a tenth of a small step

    @torch.no_grad()
    def _own_step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        divisor, self._clip_divisor = self._clip_divisor, None
        if (scale := getattr(self, "grad_scale", None)) is not None:
            divisor = scale if divisor is None else divisor * scale
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        if all(_is_usual(group) for group, _ in groups) and _are_alike([p for _, trained in groups for p in trained]):
            self._step_in_few_kernels(groups, divisor)
        else:
            self._step_of_torch(divisor)
        return result

    def _step_in_few_kernels(
        self, groups: list[tuple[dict[str, Any], list[torch.Tensor]]], divisor: torch.Tensor | None
    ) -> None:
        found_inf = getattr(self, "found_inf", None)
        states = [[self.state[parameter] or self._new_state(parameter) for parameter in each] for _, each in groups]
        counts = self._count([state for each in states for state in each])
        for (group, parameters), own in zip(groups, states, strict=True):
            if not parameters:
                continue
            torch._fused_adamw_(
                parameters,
                [parameter.grad for parameter in parameters],  # type: ignore[misc]
                [state["exp_avg"] for state in own],
                [state["exp_avg_sq"] for state in own],
                [],
                [state["step"] for state in own],
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=divisor,
                found_inf=found_inf,
            )
        if found_inf is not None:
            counts.sub_(found_inf)

    def _new_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        self.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
        return self.state[parameter]

    def _count(self, states: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        """Adds 1 to the steps of the states, which are elements of one tensor afterwards. Returns that tensor."""
        steps = tuple(state["step"] for state in states)
        if self._counts is None or len(steps) != len(self._steps) or any(map(operator.is_not, steps, self._steps)):
            self._counts = torch.stack(steps)
            self._steps = self._counts.unbind()
            for state, step in zip(states, self._steps, strict=True):
                state["step"] = step
        return self._counts.add_(1)

    def _step_of_torch(self, divisor: torch.Tensor | None) -> None:
        step: Any = torch.optim.AdamW.step
        if getattr(step, "hooked", False):  # by the first AdamW of torch's own: hooks have been called already
            step = step.__wrapped__
        before = vars(self).get("grad_scale")
        self.grad_scale = divisor
        try:
            step(self)
        finally:
            self.grad_scale = before


_step_with_hooks: Any = torch.optim.Optimizer.profile_hook_step(AdamW._own_step)


def _is_usual(group: dict[str, Any]) -> bool:
    """Returns True if a group uses no option that `_step_in_few_kernels` lacks."""
    return _options(group) == _USUAL and isinstance(group["lr"], (int, float))


def _are_alike(parameters: list[torch.Tensor]) -> bool:
    """Returns True if one kernel can take them all: one device, one number format, dense."""
    kinds = {(p.device, p.dtype, p.grad.dtype, p.grad.layout, type(p.grad)) for p in parameters}  # type: ignore[union-attr]
    return len(kinds) == 1 and all(
        dtype == grad_dtype and layout == torch.strided and kind is torch.Tensor
        for _, dtype, grad_dtype, layout, kind in kinds
    )
