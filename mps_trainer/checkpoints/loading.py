"""Loads what a checkpoint holds: weights, optimizer, schedule, scaler, position, state.

Names and contents of the files are transformers', so that either library resumes the checkpoints of the other;
loop_state.json is this package's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from ..distributed.sharded import class_of, is_shard, load_full_weights, parted_state
from ..errors import MisconfigurationException
from ..model.adapters import adapter_folders, load_adapters
from ..utils.compiled import plain_name, uncompiled
from . import manifest, schema, shards
from .files import damaged, is_there
from .manifest import STATE, WEIGHTS, weight_files
from .rng import read_positions, rng_files
from .tensor_files import read_safetensors, read_tensors
from .usable_states import require_usable

logger = logging.getLogger(__name__)

OPTIMIZER, SCHEDULER, SCALER = "optimizer.pt", "scheduler.pt", "scaler.pt"
LOOP_STATE = "loop_state.json"  # the position in training, which the step number of a checkpoint does not contain
POSITION = "position"  # no file: "loop" of its state dict goes to loop_state.json, "rng" to the files of random states
EXAMPLES_AT_A_TIME = "examples_at_a_time"  # found by auto_find_batch_size; None as long as whole batches fit


class Stateful(Protocol):
    """A part of a run that a checkpoint holds, such as an optimizer. torch's name for it."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


# Weights


def load_weights(model: nn.Module, folder: str) -> None:
    """Loads a checkpoint's weights into `model`, or its PEFT adapters if it has those instead.

    Either model may be compiled: the saved one, `model`, both or neither.

    Raises:
        MisconfigurationException: if there are none, or they belong to another model.
    """
    with uncompiled(model) as inner:
        _load_weights(inner, folder)


def _load_weights(model: nn.Module, folder: str) -> None:
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


def warn_of_keys(model: nn.Module, load_result: Any) -> None:
    """Warns of keys that `load_state_dict` found missing or unexpected."""
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or [])
    for kind, keys in (("missing", load_result.missing_keys), ("unexpected", load_result.unexpected_keys)):
        if keys := sorted(set(keys) - left_out):
            logger.warning("There were %s keys in the checkpoint model loaded: %s.", kind, keys)


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
        # transformers saves names with the prefix of torch.compile's wrappers
        weights.update((plain_name(key), tensor) for key, tensor in found.items())
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


def load_state_dicts(stateful: Mapping[str, Stateful], folder: str) -> None:
    """Loads each state dict from the file of its name; warns if there is none.

    Raises:
        MisconfigurationException: if a file is damaged or another run's.
    """
    for name, owner in stateful.items():
        in_shards = name == OPTIMIZER and shards.has_shards(folder, shards.OPTIMIZER)
        path = os.path.join(folder, shards.REST if in_shards else name)
        if not is_there(path):
            logger.warning("%s has no %s: this part of the run starts from the beginning.", folder, name)
            continue
        saved = shards.read_optimizer_state(owner, folder) if in_shards else read_tensors(path)
        try:
            require_usable(saved, owner)
            if name == OPTIMIZER and not in_shards:
                saved = _fitted_to(owner, saved)
            owner.load_state_dict(saved)
        except Exception as error:
            why = "".join(str(error).splitlines()[:1]).rstrip(".") or type(error).__name__
            why = f"it has no {error}" if isinstance(error, KeyError) else why
            raise MisconfigurationException(
                f"{path} does not belong to this run: {why}. Resume with the model and optimizer that it was saved "
                "from, or train from the beginning."
            ) from error


def _fitted_to(optimizer: Any, saved: Any) -> Any:
    """Returns the saved state with this process's shards, and with rates that are numbers where the optimizer's are.

    AdafactorSchedule computes rates on the device, and torch cannot write these into one that is on the CPU.
    """
    if any(is_shard(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        saved = parted_state(saved, optimizer)
    for own, group in zip(optimizer.param_groups, saved.get("param_groups", []), strict=False):
        if torch.is_tensor(rate := group.get("lr")) and not torch.is_tensor(own.get("lr")):
            group["lr"] = rate.item()
    return saved


# Position and state


def read_position(folder: str, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """Returns the position of process `rank` of `size`, or {} for a checkpoint without one, such as transformers'.

    `Position` uses the epoch and batch in it for a stream, and where the length of an epoch and the accumulation are
    as they were. Otherwise it computes them from the step. Where another number of processes wrote the checkpoint,
    each continues with the mean of their losses.

    Raises:
        MisconfigurationException: for a damaged file.
    """
    path = os.path.join(folder, LOOP_STATE)
    if os.path.lexists(path):
        positions = schema.read(path, schema.LoopState)["processes"]
    else:  # release 0.1 saved the position among the generators
        path = os.path.join(folder, rng_files(folder)[0])
        positions = read_positions(folder)
        if not positions:
            return {}
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
