"""Runs AdamW and gradient clipping in a few kernels for any number of parameters.

On mps each kernel costs its launch. torch's fused AdamW counts the steps of each parameter by itself there, and
clipping takes two kernels for each.

Gain, by `python -m benchmarks.patches`: a step of a small BERT has 147 operators, without this 269.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from ..devices.accelerators import ACCELERATORS

_JOINED = 2**24  # elements: gradients are joined in pieces of at most this, one at a time, to save memory
_ALONE = 2**22  # elements from which on a gradient is not worth copying
JOINED_ON_CPU = 2**16  # elements in all, up to which a copy is faster on the CPU than a kernel for each gradient


def total_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the 2-norm of all `gradients`, on their device and in their format, as torch's get_total_norm does.

    Where a kernel costs more than a copy, small gradients are joined first.
    """
    kinds = {(gradient.device.type, gradient.dtype, gradient.layout) for gradient in gradients}
    devices = {device for device, _, layout in kinds if layout == torch.strided}
    few = devices == {"cpu"} and sum(gradient.numel() for gradient in gradients) <= JOINED_ON_CPU
    if len(kinds) != 1 or not (few or devices == {"mps"}):
        return torch.nn.utils.get_total_norm(gradients)
    norms: list[torch.Tensor] = []
    joined: list[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        if gradient.numel() >= _ALONE:
            norms.append(torch.linalg.vector_norm(gradient))
            continue
        if size + gradient.numel() > _JOINED:
            norms.append(torch.linalg.vector_norm(torch.cat(joined)))
            joined, size = [], 0
        joined.append(gradient.reshape(-1))
        size += gradient.numel()
    if joined:
        norms.append(torch.linalg.vector_norm(torch.cat(joined)))
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)` that counts the steps in one kernel, and clips gradients within the step.

    State dictionaries are that class's, in both directions. The steps of the parameters are elements of one tensor.
    """

    clip_divisor: torch.Tensor | None = None  # the next step divides the gradients by it
    _step_supports_amp_scaling = False

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings)
        devices = [parameter.device for group in self.param_groups for parameter in group["params"]]
        # a kernel that ignores the divisor cannot clip, and a scaler of float16 has to look at found_inf by itself
        self._step_supports_amp_scaling = all(
            device.type in ACCELERATORS and ACCELERATORS[device.type].divides_gradients(torch.__version__)
            for device in devices[:1]
        )

    @torch.no_grad()
    def clip_next_step(self, gradients: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor | None:
        """Makes the next step scale `gradients` to a norm of at most `max_norm`. Returns their norm now.

        None if the kernel cannot scale: clip them with clip_grad_norm_.
        """
        if not self._step_supports_amp_scaling:
            return None
        norm = total_norm(gradients)
        # (norm + epsilon) / max_norm, not the inverse: the kernel divides, as it does for the scale of float16
        self.clip_divisor = torch.add(norm.float(), 1e-6).div_(max_norm).clamp_(min=1.0)
        return norm

    def is_watched(self) -> bool:
        """Returns True if a hook sees the gradients before or after a step."""
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one update, as torch's step does. Returns the value of `closure`."""
        needs_wrapper = self.is_watched() or torch.autograd._profiler_enabled()
        return (_wrapped_update if needs_wrapper else AdamW._update)(self, closure)

    # Otherwise torch wraps the step for hooks and the profiler, which takes 20 microseconds even without them
    step.hooked = True  # type: ignore[attr-defined]

    @torch.no_grad()
    def _update(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        divisor = getattr(self, "grad_scale", None) if self.clip_divisor is None else self.clip_divisor
        self.clip_divisor = None
        for group in self.param_groups:
            lists: list[list[Any]] = [[] for _ in range(6)]
            torch.optim.Adam._init_group(self, group, *lists)  # AdamW of torch 2.6 has one with other arguments
            if not lists[0]:
                continue
            alike: Any = [(lists, None)]
            if len({(each.device, each.dtype) for each in lists[0]}) > 1:  # a kernel takes one kind
                alike = self._group_tensors_by_device_and_dtype(lists).values()
            for (parameters, *others, steps), _ in alike:
                device = parameters[0].device
                divisor = None if divisor is None else divisor.to(device)
                found_inf = None if found_inf is None else found_inf.to(device)
                counts, steps = self._join(parameters, steps)
                counts.add_(1)
                update: Any = torch._fused_adamw_
                update(
                    parameters,
                    *others,
                    steps,
                    lr=group["lr"],
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=group["amsgrad"],
                    maximize=group["maximize"],
                    grad_scale=divisor,
                    found_inf=found_inf,
                )
                if found_inf is not None:
                    counts.sub_(found_inf)
        return loss

    def _join(self, parameters: list[Any], steps: list[Any]) -> tuple[torch.Tensor, list[Any]]:
        """Returns a tensor of all `steps`, and its elements, which the states hold from then on."""
        counts = steps[0]._base
        if counts is None or len(counts) != len(steps) or any(step._base is not counts for step in steps):
            counts = torch.stack(steps)
            steps = list(counts.unbind())
            for parameter, step in zip(parameters, steps, strict=True):
                self.state[parameter]["step"] = step
        return counts, steps


_wrapped_update: Any = torch.optim.Optimizer.profile_hook_step(AdamW._update)
