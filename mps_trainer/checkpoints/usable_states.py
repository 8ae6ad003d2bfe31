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
    parameters does not check either, and any dictionary for a schedule. A copy without values therefore tries it.
    """
    if isinstance(part, torch.optim.Optimizer):
        _try_optimizer(saved, part)
    elif isinstance(part, torch.optim.lr_scheduler.LRScheduler):
        _try_schedule(saved, part)
    elif isinstance(part, torch.amp.GradScaler):
        msgspec.convert(saved, schema.ScalerState)


def _try_optimizer(saved: Any, optimizer: torch.optim.Optimizer) -> None:
    msgspec.convert(saved, schema.OptimizerState)
    groups, own_groups = saved["param_groups"], optimizer.param_groups
    indices = [index for group in groups for index in group["params"]]
    sizes = [[len(group["params"]) for group in each] for each in (groups, own_groups)]
    if sizes[0] != sizes[1] or len(indices) != len(set(indices)):
        raise ValueError("it belongs to a model with a different number of parameters")
    kind = next(each for each in type(optimizer).__mro__ if each.__module__.startswith("torch."))
    for group, own in zip(groups, own_groups, strict=True):
        for name, value in own.items():
            if not isinstance(value, (int, float, tuple)):
                continue
            if name not in group:
                if isinstance(value, bool):
                    continue  # releases of torch add switches, which older states lack
                raise ValueError(f"it belongs to another optimizer, which has no {name}")
            if not is_like(group[name], value):
                raise ValueError(f"it belongs to another optimizer, which has {name}={shown(group[name], 50)}")
        # a foreign subclass may keep what it likes: GaLore's momenta have another shape
        if type(optimizer).__module__.partition(".")[0] in ("torch", "mps_trainer"):
            states = [saved["state"].get(index, {}) for index in group["params"]]
            try:
                _try_step(kind, own, own["params"], [{} for _ in states])
            except Exception:  # LBFGS needs a closure, Adafactor reads the values
                continue
            _try_step(kind, group, own["params"], states)


def _try_step(kind: Any, group: dict[str, Any], parameters: list[torch.Tensor], states: list[dict[str, Any]]) -> None:
    """Takes a step of torch's optimizer `kind` with the settings of `group` and copies of parameters and states.

    A copy with more than one element has a shape, but no values.

    Raises:
        Exception: whatever torch raises for settings or states that it cannot step with.
    """
    copies: dict[str, tuple[nn.Parameter, dict[str, Any]]] = {}  # parameters that are alike share one
    for parameter, state in zip(parameters, states, strict=True):
        device = "meta" if parameter.numel() > 1 else "cpu"
        each = nn.Parameter(torch.zeros(parameter.shape, dtype=parameter.dtype, device=device))
        each.grad = torch.zeros_like(each)
        copied = {name: _copied(value, name, each) for name, value in state.items()}
        copies.setdefault(repr((each.shape, each.dtype, copied)), (each, copied))
    settings = {**group, "params": [each for each, _ in copies.values()], "foreach": False, "fused": False}
    names = inspect.signature(kind).parameters.keys() & settings.keys()
    optimizer = kind(**{name: settings[name] for name in names})
    optimizer.state.update((each, copied) for each, copied in copies.values() if copied)
    optimizer.__setstate__({"state": optimizer.state, "param_groups": [settings]})
    # hooks for all optimizers are not called for this one
    (kind.step.__wrapped__ if getattr(kind.step, "hooked", False) else kind.step)(optimizer)


def _copied(value: Any, name: str, parameter: torch.Tensor) -> Any:
    """Returns a value of the state of `parameter` as load_state_dict() converts it; of tensors, only the shape."""
    if name == "step" and not schema.fits(value.item() if torch.is_tensor(value) else value, schema.Amount):
        raise ValueError(f"step is {shown(value, 50)}")
    if not torch.is_tensor(value):
        return value
    if value.layout != torch.strided or (is_traceable_wrapper_subclass(value) and not is_shard(value)):
        raise ValueError(f"{name} is not a dense tensor")  # torchao's states are not
    dtype = parameter.dtype if parameter.is_floating_point() and name != "step" else value.dtype
    if value.numel() > 1 or is_shard(value):
        return torch.zeros(value.shape, dtype=dtype, device=parameter.device)
    return value.to("cpu", dtype, copy=True)


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
    if torch.is_tensor(saved):
        return saved.numel() == 1 and saved.layout == torch.strided and is_like(saved.item(), own)
    return schema.fits(saved, schema.Finite if math.isfinite(own) else float)


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
