"""AdamW and gradient clipping in a handful of kernels, whatever the number of parameters.

On mps each kernel costs its launch. torch's fused AdamW there still counts its steps one parameter at a time, and
clipping takes two kernels for each: 130 operators for a BERT of two layers that are 7 here.
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
_ALONE = 2**20  # elements from which on a gradient is not worth copying
_JOINED_ON_CPU = 2**16  # elements up to which the CPU is faster with one piece than with each gradient by itself
_options = itemgetter("fused", "amsgrad", "maximize", "capturable", "differentiable")
_USUAL = (True, False, False, False, False)  # what the one kernel does
_settings = itemgetter("lr", "betas", "eps", "weight_decay")


def total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The 2-norm of all `gradients` together, on their device and in their format, as torch's get_total_norm gives it.

    In pieces that are joined first where a kernel costs more than a copy: on mps, and for few numbers on the CPU.
    """
    if not gradients:
        return torch.nn.utils.get_total_norm(gradients)
    device, dtype = gradients[0].device, gradients[0].dtype
    on_cpu = device.type == "cpu" and sum(gradient.numel() for gradient in gradients) <= _JOINED_ON_CPU
    if not (on_cpu or device.type == "mps") or any(g.dtype != dtype or g.device != device for g in gradients):
        return torch.nn.utils.get_total_norm(gradients)
    norms = [torch.linalg.vector_norm(piece) for piece in _pieces(gradients)]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _pieces(gradients: list[torch.Tensor]) -> Iterable[torch.Tensor]:
    """`gradients` joined to vectors; large ones as they are."""
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
        """Whether the members still have one kernel's settings and the parameters that were found."""
        first = self.members[0]
        return (
            all(map(_is_usual, self.members))
            and sum(len(member["params"]) for member in self.members) == self.size
            and all(_settings(member) == _settings(first) for member in self.members[1:])
        )


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)` with one counter of steps for all parameters, and clipping within the step.

    State dictionaries are that class's, in both directions. Where it does something that this does not (parameters
    that get a gradient only sometimes, amsgrad, a learning rate that is a tensor), it is used, step by step.
    """

    _groups: list[_Group] | None = None  # None until the next step finds out what it has to do
    _untrained: tuple[torch.Tensor, ...] = ()  # parameters without a gradient; that is checked at each step
    _known: Any = None  # the state that the kernels change; another one means that somebody has begun anew
    _counter: torch.Tensor | None = None
    _shares_counter = True  # False once the parameters have to be counted one by one
    _clipped: tuple[list[list[torch.Tensor]], torch.Tensor] | None = None  # gradients by group, and what divides them

    _epsilon_of: tuple[Any, torch.Tensor] | None = None

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings)
        device = self.param_groups[0]["params"][0].device
        self._step_supports_amp_scaling = fused_adamw_divides_gradients(
            device
        )  # else a gradient scaler has to look at found_inf

    # The step

    def clip_at_step(self, max_norm: float) -> torch.Tensor | None:
        """Has the next step take the gradients divided so that their norm is at most `max_norm`.

        Returns:
            Their norm now, on their device. None if that is not possible here: clip them with clip_grad_norm_.
        """
        gradients = None if self._has_hooks() else self._gradients()
        if gradients is None or not fused_adamw_divides_gradients(gradients[0][0].device):
            return None
        with torch.no_grad():
            norm = total_norm([gradient for group in gradients for gradient in group])
            # (norm + epsilon) / max_norm, not the inverse: the kernel divides, as it does for the scale of float16
            divisor = torch.add(self._epsilon(max_norm, norm.device), norm.float(), alpha=1 / max_norm).clamp_(min=1.0)
        self._clipped = gradients, divisor
        return norm

    def _epsilon(self, max_norm: float, device: torch.device) -> torch.Tensor:
        """What clipping adds to the norm, on `device`."""
        if self._epsilon_of is None or self._epsilon_of[0] != (max_norm, device):
            self._epsilon_of = (max_norm, device), torch.full((), _EPSILON / max_norm, device=device)
        return self._epsilon_of[1]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update: one kernel a group, if there is no `closure`, no hook, and a gradient for each parameter."""
        gradients = None
        if closure is None and not self._has_hooks():
            gradients = self._gradients() if self._clipped is None else self._clipped[0]
        if gradients is None:
            return self._step_of_torch(closure)
        divisor, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if self._clipped is not None:
            divisor = self._clipped[1] if divisor is None else self._clipped[1] * divisor
            self._clipped = None
        assert self._groups is not None
        assert self._counter is not None
        with torch.no_grad():
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
        return None

    step.hooked = True  # type: ignore[attr-defined] # torch need not wrap it: hooks and profiler are seen to below

    def _step_of_torch(self, closure: Callable[[], Any] | None) -> Any:
        self._count_separately()
        if self._clipped is not None:
            gradients, divisor = self._clipped
            torch._foreach_div_(list(chain.from_iterable(gradients)), divisor)
            self._clipped = None
        step: Any = torch.optim.AdamW.step
        if not getattr(step, "hooked", False):  # as long as nobody has made one of torch's own
            step = self.profile_hook_step(step)
        return step(self, closure)

    def _has_hooks(self) -> bool:
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or torch.autograd._profiler_enabled()
        )

    # What the kernels take

    def _gradients(self) -> list[list[torch.Tensor]] | None:
        """The gradients by group; None where the step is torch's."""
        if self._groups is None and not self._find_groups():
            return None
        assert self._groups is not None
        gradients = [[parameter.grad for parameter in group.parameters] for group in self._groups]
        as_before = (
            self._known is self.state
            and len(self._known) == sum(map(len, gradients))
            and all(group.is_as_before() for group in self._groups)
            and not any(gradient is None for group in gradients for gradient in group)
            and all(parameter.grad is None for parameter in self._untrained)
        )
        return gradients if as_before else None  # type: ignore[return-value]

    def _find_groups(self) -> bool:
        """Collects what the kernels take, and gives new parameters their state; False where the step is torch's."""
        if not self._shares_counter or not all(_is_usual(group) for group in self.param_groups):
            return False
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        trained = [parameter for parameter in everything if parameter.grad is not None]
        known = [parameter for parameter in trained if self.state.get(parameter)]
        if not trained or len(known) not in (0, len(trained)) or not _are_alike(trained):
            return False
        if known and any(self.state[parameter]["step"] is not self._counter for parameter in known):
            return False
        if not known:
            if self.state:
                return False
            self._counter = torch.zeros((), dtype=torch.float32, device=trained[0].device)
            for parameter in trained:
                self.state[parameter] = {
                    "step": self._counter,
                    "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                }
        self._groups = [self._collect(members) for members in _alike(self.param_groups)]
        self._untrained = tuple(parameter for parameter in everything if parameter.grad is None)
        self._known = self.state
        return True

    def _collect(self, members: list[dict[str, Any]]) -> _Group:
        everything = [parameter for member in members for parameter in member["params"]]
        parameters = [parameter for parameter in everything if parameter.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        means, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        return _Group(members, len(everything), parameters, means, squares, steps)

    def _count_separately(self) -> None:
        """A counter for each parameter from now on, as torch's step wants."""
        self._groups, self._shares_counter = None, False
        if self._counter is not None:
            self._replace_steps(self.state, self._counter)
            self._counter = None

    def _replace_steps(self, state: dict[Any, Any], counter: torch.Tensor) -> None:
        """Gives each parameter in `state` a counter of its own in place of the shared one."""
        sharing = [each for each in state.values() if each.get("step") is counter]
        for each, own in zip(sharing, counter.expand(len(sharing)).clone().unbind(), strict=True):
            each["step"] = own

    # State

    def state_dict(self) -> dict[str, Any]:
        """What torch.optim.AdamW would give, with a counter for each parameter."""
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


def _alike(groups: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Groups that have a trained parameter, those with the same settings together."""
    by_settings: dict[Any, list[dict[str, Any]]] = {}
    for group in groups:
        if any(parameter.grad is not None for parameter in group["params"]):
            lr, betas, eps, weight_decay = _settings(group)
            by_settings.setdefault((lr, tuple(betas), eps, weight_decay), []).append(group)
    return list(by_settings.values())


def _is_usual(group: dict[str, Any]) -> bool:
    """Whether a group has nothing that the one kernel leaves out."""
    return _options(group) == _USUAL and isinstance(group["lr"], (int, float))


def _are_alike(parameters: list[torch.Tensor]) -> bool:
    """Whether one kernel can take them all: one device, one number format, dense."""
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
