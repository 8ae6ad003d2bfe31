"""Checks that this run's optimizer or schedule can continue with a saved state.

torch's own load_state_dict() does not: it takes another model's momenta, whose shapes a kernel over all parameters
does not check either, and any dictionary for a schedule's state.
"""

from __future__ import annotations

import collections
import inspect
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..distributed.fsdp import is_shard
from .files import shown
from .schema import Amount, Count, Finite, OptimizerState, ScalerState, fits

_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]
_OF_A_SCHEDULE = ("last_epoch", "_step_count", "base_lrs", "_last_lr", "num_bad_epochs", "cooldown_counter")
_DIVISORS = ("T_0", "T_i", "T_max", "T_mult", "step_size", "total_iters", "total_size", "total_steps")
_VALUES_OF_SCHEDULES: dict[str, Any] = {
    "last_epoch": Annotated[float, msgspec.Meta(ge=-1, le=1e300)],
    **dict.fromkeys(("_step_count", "num_bad_epochs", "cooldown_counter"), Count),
    **dict.fromkeys(("best", "mode_worse"), float),  # infinite as long as there is none
    **dict.fromkeys(_DIVISORS, _Positive),
    **dict.fromkeys(("_anneal_func_type", "anneal_strategy"), Literal["cos", "linear"]),
}


def require_belonging(saved: Any, part: Any) -> None:
    """Raises an error if `saved` does not fit `part`: an optimizer, a scheduler or a gradient scaler."""
    if isinstance(part, torch.optim.Optimizer):
        _check_optimizer(saved, part)
    elif isinstance(part, torch.optim.lr_scheduler.LRScheduler):
        _check_schedule(saved, part)
    elif isinstance(part, torch.amp.GradScaler):
        msgspec.convert(saved, ScalerState)


def require_exported(saved: dict[str, Any], part: Any) -> None:
    """Raises ValueError for an entry of stateful_callbacks that would break `part`."""
    own = part.state()
    is_known = type(part).__module__.partition(".")[0] in ("transformers", "mps_trainer")
    for table in ("args", "attributes"):
        for name, value in saved.get(table, {}).items():
            if table == "attributes" and _is_method(part, name):
                raise ValueError(f"{name} is not a value")
            if is_known and not _is_alike(value, own.get(table, {}).get(name)):
                raise ValueError(f"{name} is {shown(value)}")


def _check_optimizer(saved: Any, optimizer: torch.optim.Optimizer) -> None:
    msgspec.convert(saved, OptimizerState)
    groups, own = saved["param_groups"], optimizer.param_groups
    indices = [index for group in groups for index in group["params"]]
    sizes = [[len(group["params"]) for group in each] for each in (groups, own)]
    if sizes[0] != sizes[1] or len(indices) != len(set(indices)):
        raise ValueError("it belongs to a model with a different number of parameters")
    is_torchs = type(optimizer).__module__.partition(".")[0] in ("torch", "mps_trainer")
    kind = next(each for each in type(optimizer).__mro__ if each.__module__.startswith("torch."))
    examples: dict[tuple, Mapping[str, Any]] = {}
    for group, mine in zip(groups, own, strict=True):
        for name, value in mine.items():
            is_setting = not isinstance(value, bool) and isinstance(value, (int, float, tuple))
            if name not in group and is_setting:  # releases of torch add switches, which older states lack
                raise ValueError(f"it belongs to another optimizer, which has no {name}")
            if name in group and (is_torchs or is_setting) and not _is_alike(group[name], value):
                raise ValueError(f"it belongs to another optimizer, which has {name}={shown(group[name])}")
        for index, parameter in zip(group["params"], mine["params"], strict=True):
            if index not in saved["state"]:
                continue
            state = saved["state"][index]
            if not isinstance(state, dict):
                raise ValueError(f"the state of parameter {index} is not a dictionary")
            if is_torchs:  # a foreign subclass may keep what it likes: GaLore's momenta have another shape
                shape = _example_shape(parameter)
                key = (id(group), shape, parameter.dtype, parameter.device)
                if key not in examples:
                    examples[key] = _example_state(kind, group, mine, shape, like=parameter)
                for name, example in examples[key].items():
                    _check_like(example, name, state.get(name), index, parameter)
    for index in saved["state"]:
        if index not in indices and (is_torchs or not isinstance(index, str)):
            raise ValueError(f"it has a state for parameter {shown(index)}, which this model does not have")


def _example_state(
    kind: Any, saved: dict[str, Any], own: dict[str, Any], shape: tuple[int, ...], like: Any
) -> Mapping[str, Any]:
    """Returns the state that one step of torch's optimizer makes for a small parameter, with `saved` settings.

    Empty for an optimizer that cannot step so with its `own` settings: LBFGS needs a closure.

    Raises:
        Exception: if torch refuses the saved settings, such as a rate below 0.
    """
    step: Any = kind.step
    if getattr(step, "hooked", False):  # hooks for all optimizers are not called for this one
        step = step.__wrapped__

    def state_after_step(settings: dict[str, Any]) -> Mapping[str, Any]:
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=like.dtype, device=like.device))
        parameter.grad = torch.zeros_like(parameter)
        names = inspect.signature(kind).parameters.keys() & settings.keys() - {"params"}
        optimizer = kind([parameter], **{name: settings[name] for name in names})
        step(optimizer)
        return optimizer.state[parameter]

    try:
        state_after_step(own)
    except Exception:
        return {}
    return state_after_step(saved)


def _example_shape(parameter: Any) -> tuple[int, ...]:
    """Returns a shape that no counter has, which a parameter without dimensions would share with it."""
    return (2,) * max(parameter.dim(), 1)


def _check_like(example: Any, name: str, value: Any, index: int, parameter: Any) -> None:
    """Raises ValueError if `value`, of the state of a parameter, cannot stand where torch has `example`."""
    is_tensor = torch.is_tensor(value)
    if value is None and (example is None or name == "momentum_buffer"):  # it has not begun
        return
    if not is_tensor and not fits(value, float):
        raise ValueError(f"the state of parameter {index} has no {name}")
    if is_tensor and not _is_dense(value):
        raise ValueError(f"{name} of parameter {index} is not a dense tensor")
    shape = tuple(example.shape) if torch.is_tensor(example) else ()
    if not shape or example.numel() == 1:
        number = value.item() if is_tensor and value.numel() == 1 and value.dim() <= 1 else value
        if not fits(number, Amount):
            raise ValueError(f"{name} of parameter {index} is {shown(number)}")
    elif shape == _example_shape(parameter):
        if not is_tensor or value.shape != parameter.shape:
            found = list(value.shape) if is_tensor else []
            raise ValueError(
                f"{name} of parameter {index} has the shape {found}, and the parameter {list(parameter.shape)}"
            )
        if not (value.is_floating_point() or parameter.is_complex()):
            raise ValueError(f"{name} of parameter {index} has the dtype {value.dtype}")


def _is_dense(tensor: torch.Tensor) -> bool:
    is_made_of_others = is_traceable_wrapper_subclass(tensor) and not is_shard(tensor)  # torchao's states are
    is_other = tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta
    return not (is_made_of_others or is_other)


def _check_schedule(saved: Any, schedule: Any) -> None:
    if not isinstance(saved, dict):
        raise ValueError("it has no scheduler state")
    own = schedule.state_dict()
    is_torchs = type(schedule).__module__.startswith("torch.")
    for name in _OF_A_SCHEDULE:
        if name in own and name not in saved:
            raise ValueError(f"it has no {name}")
    for name, value in saved.items():
        if not isinstance(name, str) or ((_is_method(schedule, name) or name in vars(schedule)) and name not in own):
            raise ValueError(f"{shown(name)} is not a value of a scheduler")
        if name not in own or not (is_torchs or name in _OF_A_SCHEDULE):
            continue
        if name == "lr_lambdas":
            is_right = _are_functions(value, own[name], schedule.lr_lambdas)
        elif name == "_schedulers":
            is_right = isinstance(value, list) and len(value) == len(schedule._schedulers)
            for one, other in zip(value, schedule._schedulers, strict=False):
                _check_schedule(one, other)
        else:
            kind = _VALUES_OF_SCHEDULES.get(name)
            is_right = _is_alike(value, own[name]) if kind is None else fits(value, kind) or not fits(own[name], kind)
        if not is_right:
            raise ValueError(f"{name} is {shown(value)}")


def _are_functions(saved: Any, own: list[Any], functions: list[Any]) -> bool:
    """Returns True if `saved` are attributes of the functions and do not replace a method."""
    return (
        isinstance(saved, list)
        and len(saved) == len(own)
        and all(
            values is None
            or (
                isinstance(values, dict)
                and not any(_is_method(function, str(name)) for name in values)
                and all(_is_alike(value, (mine or {}).get(name)) for name, value in values.items())
            )
            for values, mine, function in zip(saved, own, functions, strict=True)
        )
    )


def _is_method(part: Any, name: str) -> bool:
    """Returns True if a part's class defines `name` as anything but a plain value."""
    found = getattr(type(part), name, None)
    return name.startswith("__") or callable(found) or hasattr(found, "__get__")


def _is_alike(saved: Any, own: Any) -> bool:
    """Returns True if both are numbers, or as many of them; anything may stand where the run has None."""
    if isinstance(own, (list, tuple)):
        return (
            isinstance(saved, (list, tuple))
            and len(saved) == len(own)
            and all(_is_alike(one, other) for one, other in zip(saved, own, strict=True))
        )
    if isinstance(own, collections.Counter):
        return fits(saved, dict[Finite, Finite])
    if isinstance(own, dict):
        return isinstance(saved, dict) and all(name in saved and _is_alike(saved[name], own[name]) for name in own)
    if isinstance(own, bool):
        return saved is None or isinstance(saved, (bool, str))  # "deprecated", for one
    if isinstance(own, str):
        return isinstance(saved, str)
    if not isinstance(own, (int, float)):
        return True
    if torch.is_tensor(saved):
        return saved.numel() == 1 and saved.layout == torch.strided and fits(saved.item(), Finite)
    return fits(saved, Finite) or (fits(saved, float) and not math.isfinite(own))
