"""Checks that this run's optimizer or schedule can continue with a saved state.

torch's own load_state_dict() does not: it takes another model's momenta, whose shapes a kernel over all parameters
does not check either, and any dictionary for a schedule's state.
"""

from __future__ import annotations

import collections
import math
from typing import Any

import torch

from .storage.schema import is_amount, is_count, is_finite, is_number, shown

# of torch's optimizers: what has the shape of the parameter
_LIKE_THE_PARAMETER = (
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta",
    "sum", "ax",
)  # fmt: skip
_OF_EACH_PARAMETER = {
    "Adam": ("step", "exp_avg", "exp_avg_sq"),
    "RAdam": ("step", "exp_avg", "exp_avg_sq"),
    "NAdam": ("step", "exp_avg", "exp_avg_sq", "mu_product"),
    "Adamax": ("step", "exp_avg", "exp_inf"),
    "ASGD": ("step", "eta", "mu", "ax"),
    "RMSprop": ("step", "square_avg"),
    "Adagrad": ("step", "sum"),
    "Adadelta": ("step", "square_avg", "acc_delta"),
    "SGD": (),
}
_AT_LEAST_0 = ("lr", "initial_lr", "eps", "weight_decay", "momentum")
_BELOW_1 = ("betas", "rho")
_HOW_TO_STEP = ("capturable", "differentiable")  # which not every device and parameter takes

_OF_A_SCHEDULE = ("last_epoch", "_step_count", "base_lrs", "_last_lr", "num_bad_epochs", "cooldown_counter")
_COUNTERS = ("_step_count", "num_bad_epochs", "cooldown_counter")
_MAY_BE_INFINITE = ("best", "mode_worse")
_DIVISORS = ("T_0", "T_i", "T_max", "T_mult", "step_size", "total_iters", "total_size", "total_steps")
_WORDS = {"_anneal_func_type": ("cos", "linear"), "anneal_strategy": ("cos", "linear")}


def require_belonging(saved: Any, part: Any) -> None:
    """Raises ValueError if `saved` does not fit `part`: an optimizer, a scheduler or a gradient scaler."""
    if isinstance(part, torch.optim.Optimizer):
        _check_optimizer(saved, part)
    elif isinstance(part, torch.optim.lr_scheduler.LRScheduler):
        _check_schedule(saved, part)
    elif isinstance(part, torch.amp.GradScaler):
        _check_scaler(saved, part)


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
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
        raise ValueError("it has no optimizer state")
    groups = saved.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(each, dict) for each in groups):
        raise ValueError("it has no parameter groups")
    if not all(isinstance(each.get("params"), list) and all(map(is_count, each["params"])) for each in groups):
        raise ValueError("it has a parameter group without a list of parameters")
    own = optimizer.param_groups
    indices = [index for each in groups for index in each["params"]]
    if [len(each["params"]) for each in groups] != [len(each["params"]) for each in own] or len(indices) != len(
        set(indices)
    ):
        raise ValueError("it belongs to a model with a different number of parameters")
    is_of_torch = _kind_of_torch(optimizer) is not None
    for group, mine in zip(groups, own, strict=True):
        for name, value in mine.items():
            if not is_of_torch and not _is_setting(value):
                continue
            is_missing = name not in group
            if is_missing and not _is_setting(value):
                continue  # releases of torch add switches, which older states have not
            is_alike = not is_missing and _is_alike(group[name], value)
            if not is_alike or (is_of_torch and not _is_in_range(name, group[name], value)):
                what = f"no {name}" if is_missing else f"{name}={shown(group[name])}"
                raise ValueError(f"it belongs to another optimizer, which has {what}")
    parameters = {
        index: (parameter, group)
        for group, mine in zip(groups, own, strict=True)
        for index, parameter in zip(group["params"], mine["params"], strict=True)
    }
    for index, state in saved["state"].items():
        if index not in parameters:
            if not is_of_torch and isinstance(index, str):
                continue  # of the optimizer as a whole: its own affair
            raise ValueError(f"it has a state for parameter {shown(index)}, which this model does not have")
        _check_parameter(state, index, *parameters[index], optimizer)


def _is_in_range(name: str, saved: Any, own: Any) -> bool:
    if name in _AT_LEAST_0 and is_finite(saved):
        return bool(saved >= 0) or own < 0
    if name in _BELOW_1:
        return all(0 <= float(each) < 1 for each in (saved if isinstance(saved, (list, tuple)) else [saved]))
    if (own is None or isinstance(own, bool)) and not (saved is None or isinstance(saved, bool)):
        return False
    return name not in _HOW_TO_STEP or bool(saved) == bool(own)


def _check_parameter(
    state: Any, index: int, parameter: Any, group: dict[str, Any], optimizer: torch.optim.Optimizer
) -> None:
    if not isinstance(state, dict):
        raise ValueError(f"the state of parameter {index} is not a dictionary")
    kind = _kind_of_torch(optimizer)
    if isinstance(optimizer, torch.optim.Adam):
        for name in _OF_EACH_PARAMETER["Adam"]:
            if not torch.is_tensor(state.get(name)):
                raise ValueError(f"the state of parameter {index} has no tensor {name}")
    if kind is None:
        return  # GaLore's momenta, for one, have the name of Adam's and another shape
    required = [*_OF_EACH_PARAMETER[kind], *(["max_exp_avg_sq"] if group.get("amsgrad") is True else [])]
    for name in required:
        if not (torch.is_tensor(state.get(name)) or is_number(state.get(name))):
            raise ValueError(f"the state of parameter {index} has no {name}")
    for name, value in state.items():
        if name in _LIKE_THE_PARAMETER:
            _check_like_parameter(name, value, index, parameter)
        elif torch.is_tensor(value) and (value.numel() != 1 or value.dim() > 1 or not _is_dense(value)):
            raise ValueError(f"{name} of parameter {index} is not a number")
        elif name == "step" and not is_amount(_number(value)):
            raise ValueError(f"the step counter of parameter {index} is {shown(_number(value))}")
        elif value is not None and not torch.is_tensor(value) and not is_number(value):
            raise ValueError(f"{name} of parameter {index} is {shown(value)}")


def _check_like_parameter(name: str, value: Any, index: int, parameter: Any) -> None:
    if value is None and name == "momentum_buffer":
        return
    if not torch.is_tensor(value) or not _is_dense(value):
        raise ValueError(f"{name} of parameter {index} is not a dense tensor")
    if not (value.is_floating_point() or parameter.is_complex()):
        raise ValueError(f"{name} of parameter {index} has the dtype {value.dtype}")
    if value.shape != parameter.shape:
        raise ValueError(
            f"{name} of parameter {index} has the shape {list(value.shape)}, and the parameter {list(parameter.shape)}"
        )


def _is_dense(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and not value.is_nested and not value.is_quantized and not value.is_meta


def _number(value: Any) -> Any:
    return value.item() if torch.is_tensor(value) else value


def _kind_of_torch(optimizer: torch.optim.Optimizer) -> str | None:
    """Returns the name of the optimizer of torch that `optimizer` is, AdamW as Adam; None for any other.

    A foreign subclass may keep anything beside torch's values.
    """
    if type(optimizer).__module__.partition(".")[0] not in ("torch", "mps_trainer"):
        return None
    return next((name for name in _OF_EACH_PARAMETER if isinstance(optimizer, getattr(torch.optim, name))), None)


def _check_schedule(saved: Any, schedule: Any, least_epoch: int = 0) -> None:
    if not isinstance(saved, dict):
        raise ValueError("it has no scheduler state")
    own = schedule.state_dict()
    is_of_torch = type(schedule).__module__.startswith("torch.")
    for name in _OF_A_SCHEDULE:
        if name in own and name not in saved:
            raise ValueError(f"it has no {name}")
    for name, value in saved.items():
        if not isinstance(name, str) or ((_is_method(schedule, name) or name in vars(schedule)) and name not in own):
            raise ValueError(f"{shown(name)} is not a value of a scheduler")
        if name not in own or not (is_of_torch or name in _OF_A_SCHEDULE):
            continue
        if name == "lr_lambdas":
            is_right = _are_functions(value, own[name], schedule.lr_lambdas)
        elif name == "_schedulers":
            is_right = isinstance(value, list) and len(value) == len(schedule._schedulers)
            for one, other in zip(value, schedule._schedulers, strict=False):
                _check_schedule(one, other, least_epoch=-1)  # of one whose turn has not come in a SequentialLR
        elif name in _COUNTERS:
            is_right = is_count(value)
        elif name == "last_epoch":
            is_right = is_finite(value) and value >= least_epoch
        elif name in _MAY_BE_INFINITE:
            is_right = is_number(value)
        else:
            is_right = _is_alike(value, own[name]) and value in _WORDS.get(name, (value,))
            if name in _DIVISORS and is_number(own[name]) and own[name] > 0:
                is_right = is_right and value > 0
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


def _check_scaler(saved: Any, scaler: Any) -> None:
    if not isinstance(saved, dict):
        raise ValueError("it has no gradient scaler state")
    for name in scaler.state_dict():
        if name not in saved:
            raise ValueError(f"it has no {name}")
        value = saved[name]
        is_right = is_count(value) if name == "_growth_tracker" else is_finite(value) and value > 0
        if not is_right:
            raise ValueError(f"{name} is {shown(value)}")


def _is_method(part: Any, name: str) -> bool:
    """Returns True if a part's class defines `name` as anything but a plain value."""
    if name.startswith("__"):
        return True
    found = getattr(type(part), name, None)
    return callable(found) or hasattr(found, "__get__")


def _is_setting(value: Any) -> bool:
    """Returns True for numbers and for containers of numbers."""
    return not isinstance(value, bool) and isinstance(value, (int, float, tuple))


def _is_alike(saved: Any, own: Any) -> bool:
    """Returns True if both are numbers, or as many of them; anything may stand where the run has None."""
    if isinstance(own, (list, tuple)):
        return (
            isinstance(saved, (list, tuple))
            and len(saved) == len(own)
            and all(_is_alike(one, other) for one, other in zip(saved, own, strict=True))
        )
    if isinstance(own, collections.Counter):
        return isinstance(saved, dict) and all(is_finite(each) for pair in saved.items() for each in pair)
    if isinstance(own, dict):
        return isinstance(saved, dict) and all(name in saved and _is_alike(saved[name], own[name]) for name in own)
    if isinstance(own, bool):
        return saved is None or isinstance(saved, (bool, str))  # "deprecated", for one
    if isinstance(own, str):
        return isinstance(saved, str)
    if not isinstance(own, (int, float)):
        return True
    if torch.is_tensor(saved):
        return saved.numel() == 1 and _is_dense(saved) and is_finite(_number(saved))
    return is_finite(saved) or (is_number(saved) and not math.isfinite(own))
