"""Judges whether a state from a checkpoint fits the optimizer, schedule, scaler or callback that is to load it."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..distributed.sharded import is_shard
from ..utils.text import shown
from . import schema

_PLACE = ("last_epoch", "base_lrs", "_last_lr", "num_bad_epochs", "cooldown_counter")  # a schedule stands there
_TRIED = ("lr_lambdas", "_schedulers")  # only a trial step can judge these


def require_usable(saved: Any, part: Any) -> None:
    """Raises an error unless `part`, an optimizer, schedule or scaler, can load `saved` and then take a step.

    torch's load_state_dict() does not notice: it takes another model's momenta, whose shapes a kernel over all
    parameters does not check either, and any dictionary for a schedule.
    """
    if isinstance(part, torch.optim.Optimizer):
        _check_optimizer(saved, part)
    elif isinstance(part, torch.optim.lr_scheduler.LRScheduler):
        _try_schedule(saved, part)
    elif isinstance(part, torch.amp.GradScaler):
        msgspec.convert(saved, schema.ScalerState)


def _check_optimizer(saved: Any, optimizer: torch.optim.Optimizer) -> None:
    msgspec.convert(saved, schema.OptimizerState)
    groups, own_groups = saved["param_groups"], optimizer.param_groups
    indices = [index for group in groups for index in group["params"]]
    sizes = [[len(group["params"]) for group in each] for each in (groups, own_groups)]
    if sizes[0] != sizes[1] or len(indices) != len(set(indices)):
        raise ValueError("it belongs to a model with a different number of parameters")
    for group, own in zip(groups, own_groups, strict=True):
        _check_settings(group, own)
        # a foreign subclass may keep what it likes: GaLore's momenta have another shape
        if type(optimizer).__module__.partition(".")[0] in ("torch", "mps_trainer"):
            expected = _expected_states(optimizer, group, own)
            for index, parameter in zip(group["params"], own["params"], strict=True):
                state = saved["state"].get(index)  # none for a parameter that never had a gradient
                if state and expected:
                    _check_parameter_state(state, expected[parameter.shape, parameter.dtype])


def _check_settings(group: dict[str, Any], own: dict[str, Any]) -> None:
    for name, value in own.items():
        if not isinstance(value, (int, float, tuple)):
            continue
        if name not in group:
            if isinstance(value, bool):
                continue  # releases of torch add switches, which older states lack
            raise ValueError(f"it belongs to another optimizer, which has no {name}")
        if not is_like(group[name], value):
            raise ValueError(f"it belongs to another optimizer, which has {name}={shown(group[name], 50)}")


def _expected_states(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], own: dict[str, Any]
) -> dict[tuple, dict[str, Any]]:
    """Returns the state of a parameter after a step with the settings of `group`, by its shape and number format.

    Only a step shows which entries an optimizer needs: Adamax and AdamW have the same settings, and `amsgrad`
    adds an entry. Tensors with more than one element have no values, so the step computes nothing.

    Returns:
        {} for an optimizer that cannot step so: LBFGS needs a closure, Adafactor reads values.

    Raises:
        Exception: whatever torch raises for settings that it cannot step with.
    """
    kind: Any = next(each for each in type(optimizer).__mro__ if each.__module__.startswith("torch."))
    try:
        return _states_after_step(kind, group, own["params"])
    except Exception:
        try:
            _states_after_step(kind, own, own["params"])
        except Exception:
            return {}
        raise


def _states_after_step(
    kind: Any, group: dict[str, Any], parameters: list[torch.Tensor]
) -> dict[tuple, dict[str, Any]]:
    alike: dict[tuple, nn.Parameter] = {}
    for parameter in parameters:
        device = "meta" if parameter.numel() > 1 else "cpu"
        each = nn.Parameter(torch.zeros(parameter.shape, dtype=parameter.dtype, device=device))
        each.grad = torch.zeros_like(each)
        alike.setdefault((each.shape, each.dtype), each)
    settings = {**group, "params": list(alike.values()), "foreach": False, "fused": False}
    names = inspect.signature(kind).parameters.keys() & settings.keys()
    optimizer = kind(**{name: settings[name] for name in names})
    optimizer.__setstate__({"state": optimizer.state, "param_groups": [settings]})
    # hooks for all optimizers are not called for this one
    (kind.step.__wrapped__ if getattr(kind.step, "hooked", False) else kind.step)(optimizer)
    return {key: optimizer.state[each] for key, each in alike.items()}


def _check_parameter_state(state: Any, expected: dict[str, Any]) -> None:
    """Raises ValueError unless the state of a parameter has the names, types and shapes of the expected one."""
    if not isinstance(state, dict):
        raise ValueError(f"the state of a parameter is {shown(state, 50)}")
    for name, like in expected.items():
        if name not in state:
            raise ValueError(f"it has no {name}")
        value = state[name]
        if name == "step":
            if not schema.fits(_number(value), schema.Amount):
                raise ValueError(f"step is {shown(value, 50)}")
        elif value is None and name == "momentum_buffer":
            continue  # SGD makes one
        elif torch.is_tensor(value) or like.dim():
            _check_tensor(name, value, like.shape)
        elif not schema.fits(value, float):  # older releases of torch have numbers for tensors without dimensions
            raise ValueError(f"{name} is {shown(value, 50)}")


def _check_tensor(name: str, value: Any, shape: torch.Size) -> None:
    if not torch.is_tensor(value):
        raise ValueError(f"{name} is {shown(value, 50)}")
    if value.layout != torch.strided or (is_traceable_wrapper_subclass(value) and not is_shard(value)):
        raise ValueError(f"{name} is not a dense tensor")  # torchao's states are not
    if value.shape != shape:
        raise ValueError(f"{name} has the shape {list(value.shape)}, and its parameter {list(shape)}")


def _number(value: Any) -> Any:
    """Returns the number in a tensor of one element, and any other value as it is."""
    is_one = torch.is_tensor(value) and value.numel() == 1 and value.layout == torch.strided
    return value.item() if is_one else value


def _try_schedule(saved: Any, schedule: Any) -> None:
    own = {**schedule.state_dict(), "best": math.inf}  # infinite as long as there is none
    is_torchs = type(schedule).__module__.startswith("torch.")
    if not isinstance(saved, dict):
        raise ValueError("it has no scheduler state")
    for name in _PLACE:
        if name in own and name not in saved:
            raise ValueError(f"it has no {name}")
    for name, value in saved.items():
        is_checked = (is_torchs and name not in _TRIED) or name in _PLACE
        if is_method(schedule, name) or (is_checked and not is_like(value, own.get(name))):
            raise ValueError(f"{name} is {shown(value, 50)}")
    if not is_torchs:
        return
    if hasattr(schedule, "_schedulers"):  # each stands at its own step
        for one, other in zip(saved["_schedulers"], schedule._schedulers, strict=True):
            _try_schedule(one, other)
        return
    trial = copy.copy(schedule)
    groups = [{**group, "lr": float(group["lr"])} for group in schedule.optimizer.param_groups]
    trial.optimizer = SimpleNamespace(param_groups=groups, step=schedule.optimizer.step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of schedules that step before an optimizer
        trial.load_state_dict(copy.deepcopy(saved))  # CyclicLR removes a value from what it loads
        trial.last_epoch = max(trial.last_epoch - 1, 0)  # OneCycleLR has no step after its last one
        trial.step(*([0.0] if isinstance(trial, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))


def is_method(part: Any, name: Any) -> bool:
    """Returns True if a value of that name would replace a method of `part`, or is none of a state."""
    found = getattr(type(part), str(name), None)
    return not isinstance(name, str) or name.startswith("__") or callable(found) or hasattr(found, "__get__")


def is_like(saved: Any, own: Any) -> bool:
    """Returns True if `saved` can stand for `own`: a number for a number, a list for one of its length."""
    if isinstance(own, (list, tuple)):
        is_list = isinstance(saved, (list, tuple)) and len(saved) == len(own)
        return is_list and all(map(is_like, saved, own))
    if isinstance(own, bool):
        return saved is None or isinstance(saved, (bool, str))  # "deprecated", for one
    if isinstance(own, str):
        return isinstance(saved, str)
    if not isinstance(own, (int, float)):
        return True
    return schema.fits(_number(saved), schema.Finite if math.isfinite(own) else float)


def require_exported(saved: dict[str, Any], part: Any) -> None:
    """Raises ValueError for an entry of stateful_callbacks that would break `part`."""
    own = part.state()
    is_known = type(part).__module__.partition(".")[0] == "transformers"
    for table in ("args", "attributes"):
        for name, value in saved.get(table, {}).items():
            if table == "attributes" and is_method(part, name):
                raise ValueError(f"{name} is not a value")
            if is_known and not is_like(value, own.get(table, {}).get(name)):
                raise ValueError(f"{name} is {shown(value, 50)}")
