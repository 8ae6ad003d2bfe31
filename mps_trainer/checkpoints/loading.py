"""Loads what a checkpoint holds: weights, optimizer, schedule, scaler, position, state.

Names and contents of the files are transformers', so that either library resumes the checkpoints of the other;
loop_state.json is this package's own.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..distributed.fsdp import is_shard
from ..distributed.full_state import load_full_weights, parted_state
from ..distributed.sharded import class_of
from ..errors import MisconfigurationException
from ..model.adapters import adapter_folders, load_adapters
from ..utils.text import shown
from . import manifest, schema, shards
from .files import damaged, is_there, read_safetensors, read_tensors
from .manifest import STATE, WEIGHTS, weight_files
from .rng import read_rng, rng_files

logger = logging.getLogger(__name__)

OPTIMIZER, SCHEDULER, SCALER = "optimizer.pt", "scheduler.pt", "scaler.pt"
LOOP_STATE = "loop_state.json"  # the position in training, which the step number of a checkpoint does not contain
_PLACE = ("last_epoch", "base_lrs", "_last_lr", "num_bad_epochs", "cooldown_counter")  # a schedule stands there
_TRIED = ("lr_lambdas", "_schedulers")  # only a trial step can judge these
EXAMPLES_AT_A_TIME = "examples_at_a_time"  # found by auto_find_batch_size; None as long as whole batches fit


# Weights


def load_weights(model: nn.Module, folder: str) -> None:
    """Loads a checkpoint's weights into `model`, or its PEFT adapters if it has those instead.

    Raises:
        MisconfigurationException: if there are none, or they belong to another model.
    """
    if not weight_files(folder) and adapter_folders(folder):
        load_adapters(model, folder)
        return
    if (changed := manifest.converted(folder)) is not None:
        logger.warning("The weights in %s were converted after they were saved: %s.", folder, changed)
    try:
        if shards.has_shards(folder):
            result = shards.load_weights(model, folder)
        else:
            result = load_full_weights(model, _read_weights(folder))
    except RuntimeError as error:  # a shape that does not fit
        raise MisconfigurationException(f"The weights in {folder} belong to another model: {error}") from error
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or [])
    missing = set(result.missing_keys) - _tied_to_loaded(model, set(result.missing_keys)) - left_out
    unknown = set(result.unexpected_keys)
    if missing or unknown:
        # transformers writes some models under other names than they have in memory; it reads them back, too
        if hasattr(model, "from_pretrained") and _load_by_library(model, folder):
            return
        raise MisconfigurationException(
            f"The weights in {folder} belong to another model: {len(missing)} "
            f"{'parameter is' if len(missing) == 1 else 'parameters are'} missing and {len(unknown)} "
            f"{'is' if len(unknown) == 1 else 'are'} unexpected, for example {min(missing | unknown)}."
        )


def _read_weights(folder: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for name in weight_files(folder) or [WEIGHTS]:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise MisconfigurationException(
                f"{folder} is not a checkpoint with weights: it has no {name}. Name a folder checkpoint-<step> that "
                "the Trainer wrote."
            )
        found = read_safetensors(path) if name.endswith(".safetensors") else read_tensors(path)
        if not schema.fits(found, dict[str, Any]) or not all(map(torch.is_tensor, found.values())):
            raise damaged(path, ValueError("it holds something other than a model's weights"))
        weights.update(found)
    return weights


def _load_by_library(model: Any, folder: str) -> bool:
    """Loads a transformers model by its own from_pretrained. Returns False if parameters are missing."""
    with without_progress_bars():
        kind: Any = class_of(model)
        try:
            fresh, report = kind.from_pretrained(folder, config=model.config, output_loading_info=True)
        except Exception as error:
            logger.debug("from_pretrained does not load %s", folder, exc_info=error)
            return False
    if any(report.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        return False
    load_full_weights(model, fresh.state_dict())
    return True


def _tied_to_loaded(model: nn.Module, missing: set[str]) -> set[str]:
    """Returns the names absent from a file that are tied to a parameter in it."""
    state = model.state_dict(keep_vars=True)
    # the part that a process has of a sharded one may be empty, and then lies nowhere
    place = {name: id(tensor) if is_shard(tensor) else tensor.data_ptr() for name, tensor in state.items()}
    loaded = {place[name] for name in state if name not in missing}
    return {name for name in missing if name in place and place[name] in loaded}


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hides the bar that transformers draws for each file, which would break the run's own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# Optimizer, schedule and scaler


def load_states(owners: Mapping[str, Any], folder: str) -> None:
    """Loads the state of each object from the file of its name; warns if there is none.

    Raises:
        MisconfigurationException: if a file is damaged or another run's.
    """
    for name, owner in owners.items():
        in_shards = name == OPTIMIZER and shards.has_shards(folder, shards.OPTIMIZER)
        path = os.path.join(folder, shards.REST if in_shards else name)
        if not is_there(path):
            logger.warning("%s has no %s: this part of the run starts from the beginning.", folder, name)
            continue
        saved = shards.read_optimizer_state(owner, folder) if in_shards else read_tensors(path)
        try:
            require_usable(saved, owner)
            groups = owner.param_groups if name == OPTIMIZER and not in_shards else []
            if any(is_shard(parameter) for group in groups for parameter in group["params"]):
                saved = parted_state(saved, owner)
            owner.load_state_dict(saved)
        except Exception as error:
            why = "".join(str(error).splitlines()[:1]).rstrip(".") or type(error).__name__
            why = f"it has no {error}" if isinstance(error, KeyError) else why
            raise MisconfigurationException(
                f"{path} does not belong to this run: {why}. Resume with the model and optimizer that it was saved "
                "from, or train from the beginning."
            ) from error


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
            if isinstance(value, bool) or not isinstance(value, (int, float, tuple)):
                continue  # releases of torch add switches, which older states lack
            if name not in group:
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
    is_known = type(part).__module__.partition(".")[0] in ("transformers", "mps_trainer")
    for table in ("args", "attributes"):
        for name, value in saved.get(table, {}).items():
            if table == "attributes" and is_method(part, name):
                raise ValueError(f"{name} is not a value")
            if is_known and not is_like(value, own.get(table, {}).get(name)):
                raise ValueError(f"{name} is {shown(value, 50)}")


# Position and state


def read_position(folder: str, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """Returns the position of process `rank` of `size`, or {} for a checkpoint without one, such as transformers'.

    Where another number of processes wrote the checkpoint, each continues with the mean of their losses.

    Raises:
        MisconfigurationException: for a damaged file.
    """
    path = os.path.join(folder, LOOP_STATE)
    if os.path.lexists(path):
        positions = schema.read(path, schema.LoopState)["processes"]
    else:  # release 0.1 saved the position among the generators
        files = rng_files(folder)
        path = os.path.join(folder, files[0])
        states = [read_rng(folder, each, len(files)) or {} for each in range(len(files))]
        if not all("loop" in state for state in states):
            return {}
        positions = [state["loop"] for state in states]
    for each in positions:
        in_epoch = isinstance(each, dict) and "epoch" in each
        schema.check(path, each, schema.PositionInEpoch if in_epoch else schema.Position)
        if "due" in each:  # its name in 0.1
            each["postponed"] = each.pop("due")
    if len(positions) == size:
        return positions[rank]
    mean = sum(each["sum"] for each in positions) / len(positions)
    return {**positions[rank % len(positions)], "sum": mean}


def read_state(folder: str) -> dict[str, Any]:
    """Returns the content of trainer_state.json in `folder`. Unknown names are left as they are.

    Raises:
        MisconfigurationException: for a file that is damaged, lacks a value or has one of another type.
    """
    path = os.path.join(folder, STATE)
    state: dict[str, Any] = schema.read(path, schema.State)
    schema.check(path, state["log_history"], schema.LoggedValues)
    return state
