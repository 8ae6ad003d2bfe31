"""Writes and reads the states of optimizer, schedule and gradient scaler.

Names and contents are transformers', so that either library resumes the checkpoints of the other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from ..distributed.fsdp import is_shard
from ..distributed.full_state import parted_state
from ..errors import MisconfigurationException
from . import shards
from .compatibility import require_belonging
from .storage import schema
from .storage.files import damaged, read_tensors

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"


def save_states(states: Mapping[str, Any], folder: str) -> None:
    """Writes each state, or the state of each object, to the file of its name."""
    for name, owner in states.items():
        torch.save(state_of(owner), os.path.join(folder, name))


def state_of(owner: Any) -> Any:
    """Returns the state of `owner` for a checkpoint: its state_dict(), or `owner` if it is a state already."""
    return owner if isinstance(owner, dict) else owner.state_dict()


def save_shards(model: torch.nn.Module, optimizer: Any, folder: str, group: Any) -> None:
    """Writes this process's part of the weights, and of the state of `optimizer` if there is one.

    Raises:
        OSError: if the disk of one of the processes does not take it, in all of them.
    """
    weights: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        weights.setdefault(id(tensor), (name, tensor.detach()))  # tied ones once
    shards.write(folder, shards.WEIGHTS, dict(weights.values()), group)
    if optimizer is not None:
        shards.write(folder, shards.OPTIMIZER, _tensors_and_rest(optimizer)[0], group)


def save_rest_of_optimizer(optimizer: Any, folder: str) -> None:
    """Writes the parts of the state of `optimizer` that are not tensors. They are equal in all processes."""
    torch.save(_tensors_and_rest(optimizer)[1], os.path.join(folder, shards.REST))


def _tensors_and_rest(optimizer: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    packed = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    others: dict[Any, dict[str, Any]] = {}
    for index, values in packed["state"].items():
        others[index] = {name: value for name, value in values.items() if not torch.is_tensor(value)}
        tensors.update({f"{index}.{name}": value for name, value in values.items() if torch.is_tensor(value)})
    return tensors, {"state": others, "param_groups": packed["param_groups"]}


def _read_shards(optimizer: Any, folder: str) -> Any:
    """Returns the optimizer's state from sharded files, with this process's part of sharded tensors."""
    saved = read_tensors(os.path.join(folder, shards.REST), required=["state", "param_groups"])
    parameters = dict(enumerate(_parameters(optimizer)))
    tensors: dict[str, torch.Tensor] = {}
    for name, (shape, dtype) in shards.listed(folder, shards.OPTIMIZER).items():
        index, _, of = name.partition(".")
        like = parameters.get(int(index)) if index.isdigit() else None
        is_part = is_shard(like) and like.shape == shape  # type: ignore[union-attr]
        tensors[name] = torch.zeros_like(like, dtype=dtype).detach() if is_part else torch.empty(shape, dtype=dtype)  # type: ignore[arg-type]
        saved["state"].setdefault(int(index) if index.isdigit() else index, {})[of] = tensors[name]
    shards.read_into(folder, shards.OPTIMIZER, tensors)
    return saved


def restore_states(owners: Mapping[str, Any], folder: str) -> None:
    """Loads the state of each object from the file of its name; warns if there is none.

    Raises:
        MisconfigurationException: if a file is damaged or another run's.
    """
    for name, owner in owners.items():
        _restore(owner, folder, name)


def _restore(owner: Any, folder: str, name: str) -> None:
    path = os.path.join(folder, name)
    in_shards = name == OPTIMIZER and shards.has_shards(folder, shards.OPTIMIZER)
    if in_shards:
        path = os.path.join(folder, shards.REST)
    if not os.path.isfile(path):
        if os.path.lexists(path):
            raise damaged(path, ValueError("it is a folder, or a link that leads nowhere"))
        logger.warning("%s has no %s: this part of the run starts from the beginning.", folder, name)
        return
    saved = _read_shards(owner, folder) if in_shards else read_tensors(path)
    try:
        require_belonging(saved, owner)
        if name == OPTIMIZER and not in_shards and any(map(is_shard, _parameters(owner))):
            saved = parted_state(saved, owner)
        owner.load_state_dict(saved)
    except Exception as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else schema.first_line(error)
        raise MisconfigurationException(
            f"{path} does not belong to this run: {why}. Resume with the model and optimizer that it was saved from, "
            "or train from the beginning."
        ) from error


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in getattr(optimizer, "param_groups", []) for parameter in group["params"]]
