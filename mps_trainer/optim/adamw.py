"""Runs AdamW and gradient clipping in a few kernels for any number of parameters.

On mps each kernel costs its launch. torch's fused AdamW there still counts its steps one parameter at a time, and
clipping takes two kernels for each. Large models take two more kernels for every 16 million numbers, so that little
memory goes into it.

Gain, by `python -m benchmarks.patches`: a step of a small BERT has 147 operators, without this 272.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from ..devices.kernels import fused_adamw_divides_gradients

_EPSILON = 1e-6  # what clip_grad_norm_ adds to the norm that it divides by
_JOINED = 2**24  # elements: gradients are joined in pieces of at most this, so that little memory goes into it
_ALONE = 2**22  # elements from which on a gradient is not worth copying
_JOINED_ON_CPU = 2**16  # elements up to which the CPU is faster with one piece than with each gradient by itself
_options = itemgetter("fused", "amsgrad", "maximize", "capturable", "differentiable")
_USUAL = (True, False, False, False, False)  # what the one kernel does
_settings = itemgetter("lr", "betas", "eps", "weight_decay")


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


@dataclass
class _Group:
    """Groups of the optimizer with the same settings, and what their kernel takes: the parameters that are trained."""

    members: list[dict[str, Any]]
    size: int  # parameters in them, those without a gradient among them
    parameters: list[torch.Tensor]
    means: list[torch.Tensor]
    squares: list[torch.Tensor]
    steps: list[torch.Tensor]  # one tensor, as often as there are parameters

    def is_as_before(self) -> bool:
        """Returns True if the members still share one kernel's settings and have the parameters that were found."""
        first = self.members[0]
        return (
            all(map(_is_usual, self.members))
            and sum(len(member["params"]) for member in self.members) == self.size
            and all(_settings(member) == _settings(first) for member in self.members[1:])
        )


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)` with one counter of steps for all parameters, and clipping within the step.

    State dictionaries are that class's, in both directions. Where parameters get a gradient only sometimes, or a group
    has amsgrad or another option that the one kernel does not have, the work is torch's from then on.
    """

    _groups: list[_Group] | None = None  # None until the next step finds out what it has to do
    _untrained: tuple[torch.Tensor, ...] = ()  # parameters without a gradient
    _counter: torch.Tensor | None = None
    _shares_counter = True  # False once the parameters have to be counted one by one
    _clipped: tuple[list[list[torch.Tensor]], torch.Tensor] | None = None  # gradients by group, and what divides them
    _epsilon_of: tuple[Any, torch.Tensor] | None = None

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings)
        devices = [parameter.device for group in self.param_groups for parameter in group["params"]]
        # whether the kernel divides by the norm; else a scaler of float16 has to look at found_inf by itself, too
        self._step_supports_amp_scaling = all(map(fused_adamw_divides_gradients, devices[:1]))

    # The step

    def clip_at_step(self, max_norm: float) -> torch.Tensor | None:
        """Makes the next step scale the gradients to a norm of at most `max_norm`.

        Returns:
            Their norm now, on their device. None if that is not possible here: clip them with clip_grad_norm_.
        """
        gradients = None if self._has_hooks() else self._gradients()
        if gradients is None or not getattr(self, "_step_supports_amp_scaling", False):
            return None
        with torch.no_grad():
            norm = total_norm([gradient for group in gradients for gradient in group])
            # (norm + epsilon) / max_norm, not the inverse: the kernel divides, as it does for the scale of float16
            divisor = torch.add(self._epsilon(max_norm, norm.device), norm.float(), alpha=1 / max_norm).clamp_(min=1.0)
        self._clipped = gradients, divisor
        return norm

    def forget_clipping(self) -> None:
        """Discards the pending clip factor when no step follows `clip_at_step`."""
        self._clipped = None

    def _epsilon(self, max_norm: float, device: torch.device) -> torch.Tensor:
        """Returns the epsilon that clipping adds to the norm, on `device`."""
        if self._epsilon_of is None or self._epsilon_of[0] != (max_norm, device):
            self._epsilon_of = (max_norm, device), torch.full((), _EPSILON / max_norm, device=device)
        return self._epsilon_of[1]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one update, with one kernel for all groups of the same settings."""
        if self._has_hooks():
            return _step_with_hooks(self, closure)
        return self._own_step(closure)

    step.hooked = True  # type: ignore[attr-defined] # torch need not wrap it, which takes 0.02 ms of each step

    def _has_hooks(self) -> bool:
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or torch.autograd._profiler_enabled()
        )

    def _own_step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        clipped, self._clipped = self._clipped, None
        # what was found when they were clipped need not be looked for again
        gradients = clipped[0] if clipped is not None and self._are_current(clipped[0]) else self._gradients()
        divisor = None if clipped is None else clipped[1]
        if gradients is None:
            self._step_of_torch(None if clipped is None else clipped[0], divisor)
        else:
            self._step_in_one_kernel(gradients, divisor)
        return result

    @torch.no_grad()
    def _step_in_one_kernel(self, gradients: list[list[torch.Tensor]], divisor: torch.Tensor | None) -> None:
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if scale is not None:
            divisor = scale if divisor is None else divisor * scale
        assert self._groups is not None
        assert self._counter is not None
        self._counter.add_(1)
        for group, grads in zip(self._groups, gradients, strict=True):
            settings = group.members[0]
            torch._fused_adamw_(
                group.parameters,
                grads,
                group.means,
                group.squares,
                [],
                group.steps,
                lr=settings["lr"],
                beta1=settings["betas"][0],
                beta2=settings["betas"][1],
                weight_decay=settings["weight_decay"],
                eps=settings["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=divisor,
                found_inf=found_inf,
            )
        if found_inf is not None:
            self._counter.sub_(found_inf)

    def _step_of_torch(self, clipped: list[list[torch.Tensor]] | None, divisor: torch.Tensor | None) -> None:
        self._count_separately()
        if clipped is not None:
            torch._foreach_div_(list(chain.from_iterable(clipped)), divisor)  # type: ignore[arg-type]
        step: Any = torch.optim.AdamW.step
        if getattr(step, "hooked", False):  # once somebody has made one of torch's own; hooks are called already
            step = step.__wrapped__
        step(self)

    # What the kernels take

    def _gradients(self) -> list[list[torch.Tensor]] | None:
        """Returns the gradients by group; None where torch's own step runs."""
        if self._groups is not None and not self._is_as_found(self._groups):
            self._groups = None
        if self._groups is None and not self._find_groups():
            return None
        assert self._groups is not None
        return [[parameter.grad for parameter in group.parameters] for group in self._groups]  # type: ignore[misc]

    def _are_current(self, gradients: list[list[torch.Tensor]]) -> bool:
        """Returns True if the parameters still have `gradients`."""
        return self._groups is not None and all(
            parameter.grad is gradient
            for group, grads in zip(self._groups, gradients, strict=True)
            for parameter, gradient in zip(group.parameters, grads, strict=True)
        )

    def _is_as_found(self, groups: list[_Group]) -> bool:
        """Returns True if settings, parameters and state are unchanged and the same parameters have gradients."""
        if any(parameter.grad is not None for parameter in self._untrained):
            return False
        if len(self.state) != sum(len(group.parameters) for group in groups):
            return False
        state, counter = self.state, self._counter
        for group in groups:
            if not group.is_as_before():
                return False
            for parameter, mean, square in zip(group.parameters, group.means, group.squares, strict=True):
                own = state[parameter]
                if parameter.grad is None or own.get("step") is not counter:
                    return False
                if own.get("exp_avg") is not mean or own.get("exp_avg_sq") is not square:
                    return False
        return True

    def _find_groups(self) -> bool:
        """Collects the arguments of the kernels and creates missing states. Returns False where torch's step runs."""
        if not self._shares_counter or not all(_is_usual(group) for group in self.param_groups):
            return False
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        trained = [parameter for parameter in everything if parameter.grad is not None]
        if not trained or not _are_alike(trained):
            return False
        if not self.state:
            self._begin(trained)
        states = [self.state.get(parameter) or {} for parameter in trained]
        if len(self.state) != len(trained) or any(state.get("step") is not self._counter for state in states):
            return False
        self._groups = [self._collect(members) for members in _alike(self.param_groups)]
        self._untrained = tuple(parameter for parameter in everything if parameter.grad is None)
        return True

    def _begin(self, parameters: list[torch.Tensor]) -> None:
        self._counter = torch.zeros((), dtype=torch.float32, device=parameters[0].device)
        for parameter in parameters:
            self.state[parameter] = {
                "step": self._counter,
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }

    def _collect(self, members: list[dict[str, Any]]) -> _Group:
        everything = [parameter for member in members for parameter in member["params"]]
        parameters = [parameter for parameter in everything if parameter.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        means, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        return _Group(members, len(everything), parameters, means, squares, steps)

    def _count_separately(self) -> None:
        """Gives each parameter its own step counter from now on, as torch's step requires."""
        self._groups, self._shares_counter = None, False
        if self._counter is not None:
            self._replace_steps(self.state, self._counter)
            self._counter = None

    def _replace_steps(self, state: dict[Any, Any], counter: torch.Tensor) -> None:
        """Gives each parameter in `state` its own step counter instead of the shared one."""
        sharing = [each for each in state.values() if each.get("step") is counter]
        for each, own in zip(sharing, counter.expand(len(sharing)).clone().unbind(), strict=True):
            each["step"] = own

    # State

    def state_dict(self) -> dict[str, Any]:
        """Returns the state_dict of torch.optim.AdamW, with a counter for each parameter."""
        packed = super().state_dict()
        if self._counter is not None:
            packed["state"] = {key: dict(each) for key, each in packed["state"].items()}
            self._replace_steps(packed["state"], self._counter)
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what this class or torch.optim.AdamW has saved. Reads the counters, which may wait for the device."""
        super().load_state_dict(state_dict)
        self._groups, self._counter, self._shares_counter = None, None, True
        steps = [each["step"] for each in self.state.values() if "step" in each]
        if steps and len(steps) == len(self.state):
            counts = torch.stack([step.detach().float().reshape(()) for step in steps])
            if len(set(counts.tolist())) == 1:
                self._counter = counts[0].clone()
                for each in self.state.values():
                    each["step"] = self._counter

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        counters = {id(each["step"]): each["step"] for each in self.state.values() if "step" in each}
        if len(counters) == 1:  # of a copy
            self._counter = next(iter(counters.values()))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._counter is not None:  # the new parameters are counted from here on, the others go on
            self._count_separately()
        super().add_param_group(param_group)


_step_with_hooks: Any = torch.optim.Optimizer.profile_hook_step(AdamW._own_step)


def _alike(groups: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Groups that have a trained parameter, those with the same settings together."""
    by_settings: dict[Any, list[dict[str, Any]]] = {}
    for group in groups:
        if any(parameter.grad is not None for parameter in group["params"]):
            lr, betas, eps, weight_decay = _settings(group)
            by_settings.setdefault((lr, tuple(betas), eps, weight_decay), []).append(group)
    return list(by_settings.values())


def _is_usual(group: dict[str, Any]) -> bool:
    """Returns True if a group uses no option that the fused kernel lacks."""
    return _options(group) == _USUAL and isinstance(group["lr"], (int, float))


def _are_alike(parameters: list[torch.Tensor]) -> bool:
    """Returns True if one kernel can take them all: one device, one number format, dense."""
    first = parameters[0]
    return all(
        type(parameter) in (torch.nn.Parameter, torch.Tensor)
        and (parameter.device, parameter.dtype) == (first.device, first.dtype)
        and parameter.is_floating_point()
        and parameter.grad is not None
        and type(parameter.grad) is torch.Tensor
        and parameter.grad.layout == torch.strided
        and parameter.grad.dtype == first.dtype
        for parameter in parameters
    )
