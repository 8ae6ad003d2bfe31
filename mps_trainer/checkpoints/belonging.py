"""Whether an optimizer's or a schedule's saved state is one that this run's can go on with.

torch's own load_state_dict() does not ask: it takes another model's momenta, whose shapes a kernel over all
parameters does not look at either, and it takes any dictionary for a schedule's.
"""

from __future__ import annotations

import math
from typing import Any

import torch

# of torch's optimizers: what has the shape of the parameter
_LIKE_THE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum")
_OF_ADAM = ("step", "exp_avg", "exp_avg_sq")
_OF_A_SCHEDULE = ("last_epoch", "_step_count", "base_lrs", "_last_lr", "num_bad_epochs", "cooldown_counter")


def require_belonging(saved: Any, part: Any) -> None:
    """Raises ValueError that says how `saved` differs from what `part`, an optimizer or a schedule, needs."""
    if isinstance(part, torch.optim.Optimizer):
        _check_optimizer(saved, part)
    elif isinstance(part, torch.optim.lr_scheduler.LRScheduler):
        _check_schedule(saved, part)


def _check_optimizer(saved: Any, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
        raise ValueError("it holds no optimizer's state")
    groups = saved.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(each, dict) for each in groups):
        raise ValueError("it holds no groups of parameters")
    own = optimizer.param_groups
    if [len(each.get("params", ())) for each in groups] != [len(each["params"]) for each in own]:
        raise ValueError("it is of a model with another number of parameters")
    for group, mine in zip(groups, own, strict=True):
        for name, value in mine.items():
            if _is_setting(value) and not _is_alike(group.get(name), value):
                what = f"{name}={group[name]!r:.50}" if name in group else f"no {name}"
                raise ValueError(f"it is of another optimizer, which has {what}")
    parameters = {
        index: parameter
        for group, mine in zip(groups, own, strict=True)
        for index, parameter in zip(group["params"], mine["params"], strict=True)
    }
    for index, state in saved["state"].items():
        if index not in parameters:
            raise ValueError(f"it has a state of parameter {index!r:.50}, which this model has not")
        _check_parameter(state, index, parameters[index], optimizer)


def _check_parameter(state: Any, index: int, parameter: Any, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(state, dict):
        raise ValueError(f"the state of parameter {index} is no table")
    if isinstance(optimizer, torch.optim.Adam):
        for name in _OF_ADAM:
            if not torch.is_tensor(state.get(name)):
                raise ValueError(f"the state of parameter {index} has no tensor {name}")
    if not isinstance(optimizer, tuple(_torch_optimizers())):
        return  # GaLore's momenta, for one, have the name of Adam's and another shape
    for name, value in state.items():
        shape = parameter.shape if name in _LIKE_THE_PARAMETER else None
        if name == "step" and torch.is_tensor(value) and value.numel() != 1:
            raise ValueError(f"the counter of parameter {index} has {value.numel()} values")
        if shape is not None and torch.is_tensor(value) and value.shape != shape:
            raise ValueError(
                f"{name} of parameter {index} has the shape {list(value.shape)}, and the parameter {list(shape)}"
            )


def _torch_optimizers() -> list[type]:
    names = ("Adam", "NAdam", "RAdam", "Adamax", "SGD", "ASGD", "RMSprop", "Adagrad", "Adadelta")
    return [getattr(torch.optim, name) for name in names]


def _check_schedule(saved: Any, schedule: Any) -> None:
    if not isinstance(saved, dict):
        raise ValueError("it holds no schedule's state")
    own = schedule.state_dict()
    for name in _OF_A_SCHEDULE:
        if name in own and not _is_alike(saved.get(name), own[name]):
            what = f"{name} is {str(saved[name])[:50]!r}" if name in saved else f"it has no {name}"
            raise ValueError(what)


def _is_setting(value: Any) -> bool:
    """Numbers and what is made of them: releases of torch add switches, which older states have not."""
    return not isinstance(value, bool) and isinstance(value, (int, float, tuple))


def _is_alike(saved: Any, own: Any) -> bool:
    """Whether one stands for a number where the other does, or for as many."""
    if isinstance(own, (list, tuple)):
        return (
            isinstance(saved, (list, tuple))
            and len(saved) == len(own)
            and all(_is_alike(one, other) for one, other in zip(saved, own, strict=True))
        )
    if torch.is_tensor(saved):
        return saved.numel() == 1
    if not isinstance(own, (int, float)) or isinstance(own, bool):
        return True
    return isinstance(saved, (int, float)) and not isinstance(saved, bool) and not math.isnan(saved)
