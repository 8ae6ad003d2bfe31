"""Writes sharded weights and optimizer states, each process its part. Any number of processes can read them.

Uses PyTorch's Distributed Checkpoint with its storage in safetensors. Three things torch leaves to this module:
its default storage lists the parts in a pickle, which could run code when it is read, while safetensors list them in
their headers; that storage takes tensors only, so the plain values of an optimizer's state have a file of their own;
and it does not notice that a part of a tensor is missing.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from typing import Any

import torch
from torch import nn

from ..devices.facts import parse_version
from ..distributed.sharded import is_shard
from ..errors import MisconfigurationException
from ..utils.compiled import uncompiled
from . import manifest
from .files import damaged
from .tensor_files import read_tensors

FOLDER = "shards"
WEIGHTS, OPTIMIZER = "model", "optimizer"  # in it, a folder each
REST = "optimizer_rest.pt"  # the plain values of an optimizer's state


def has_shards(checkpoint: str, what: str = WEIGHTS) -> bool:
    return os.path.isdir(os.path.join(checkpoint, FOLDER, what))


def require_able() -> None:
    """Raises MisconfigurationException if this torch cannot write or read them."""
    if parse_version(torch.__version__) < (2, 9):
        raise MisconfigurationException(
            f"state_dict_type SHARDED_STATE_DICT needs torch 2.9 or newer, and this is {torch.__version__}. Update "
            "it, or leave state_dict_type out of fsdp_config, which saves whole tensors."
        )


def save_parts(checkpoint: str, model: nn.Module, optimizer: Any, group: Any = None) -> None:
    """Writes this process's part of the weights, and of the state of `optimizer` if there is one.

    Raises:
        OSError: if the disk of one of the processes does not take it, in all of them.
    """
    weights: dict[int, tuple[str, torch.Tensor]] = {}
    with uncompiled(model) as inner:
        state = inner.state_dict(keep_vars=True)
    for name, tensor in state.items():
        weights.setdefault(id(tensor), (name, tensor.detach()))  # tied ones once
    write(checkpoint, WEIGHTS, dict(weights.values()), group)
    if optimizer is not None:
        write(checkpoint, OPTIMIZER, tensors_and_rest(optimizer)[0], group)


def tensors_and_rest(optimizer: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns the tensors in the state of `optimizer` by name, and the state without them."""
    packed = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    others: dict[Any, dict[str, Any]] = {}
    for index, values in packed["state"].items():
        others[index] = {name: value for name, value in values.items() if not torch.is_tensor(value)}
        tensors.update({f"{index}.{name}": value for name, value in values.items() if torch.is_tensor(value)})
    return tensors, {"state": others, "param_groups": packed["param_groups"]}


def write(checkpoint: str, what: str, tensors: dict[str, torch.Tensor], group: Any = None) -> None:
    """Writes the parts of `tensors`, each process its own; all have to call it, with the same names."""
    import torch.distributed.checkpoint as dcp

    writer = dcp.HuggingFaceStorageWriter(os.path.join(checkpoint, FOLDER, what), save_distributed=True)
    try:
        dcp.save(tensors, storage_writer=writer, process_group=group)
    except dcp.CheckpointException as error:
        raise _first_of(error) from error


def _first_of(error: Any) -> BaseException:
    """Returns one error for all processes: an OSError if there is one, as on a full disk, else the first."""
    failed = [failure[0] for failure in error.failures.values()]
    return next((each for each in failed if isinstance(each, OSError)), failed[0])


def load_weights(model: nn.Module, checkpoint: str) -> Any:
    """Loads this process's part of the weights into the model. Returns missing and unexpected names.

    Raises:
        RuntimeError: for a shape that does not fit; nothing is loaded then.
    """
    state, there = model.state_dict(keep_vars=True), listed(checkpoint, WEIGHTS)
    for name, (shape, _) in there.items():
        if name in state and state[name].shape != shape:
            raise RuntimeError(f"{name} has the shape {list(shape)} there and {list(state[name].shape)} in the model.")
    read_into(checkpoint, WEIGHTS, {name: state[name].detach() for name in there if name in state})
    missing, unexpected = [name for name in state if name not in there], [name for name in there if name not in state]
    return nn.modules.module._IncompatibleKeys(missing, unexpected)


def read_optimizer_state(optimizer: Any, checkpoint: str) -> Any:
    """Returns the state for `optimizer.load_state_dict`, with this process's part of sharded tensors."""
    path = os.path.join(checkpoint, REST)
    saved = read_tensors(path)
    try:
        state = saved["state"]
        parameters = dict(enumerate(each for group in optimizer.param_groups for each in group["params"]))
        tensors: dict[str, torch.Tensor] = {}
        for name, (shape, dtype) in listed(checkpoint, OPTIMIZER).items():
            index, _, of = name.partition(".")
            like: Any = parameters.get(int(index)) if index.isdigit() else None
            is_part = is_shard(like) and like.shape == shape
            tensors[name] = (
                torch.zeros_like(like, dtype=dtype).detach() if is_part else torch.empty(shape, dtype=dtype)
            )
            state.setdefault(int(index) if index.isdigit() else index, {})[of] = tensors[name]
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path, error) from error
    read_into(checkpoint, OPTIMIZER, tensors)
    return saved


def listed(checkpoint: str, what: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Returns shape and number format of the stored tensors, by name.

    Raises:
        MisconfigurationException: for damaged files.
    """
    import torch.distributed.checkpoint as dcp
    from safetensors import SafetensorError

    folder = os.path.join(checkpoint, FOLDER, what)
    files = manifest.read(checkpoint)["files"] if os.path.isfile(os.path.join(checkpoint, manifest.NAME)) else []
    for name in files:
        if name.startswith(f"{FOLDER}/{what}/") and not os.path.isfile(os.path.join(checkpoint, name)):
            raise damaged(folder, ValueError(f"{name} is missing"))
    try:
        found: dict[str, Any] = dict(dcp.HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise damaged(folder, error) from error
    for name, entry in found.items():  # a missing part would be read as whatever is in memory
        if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(entry.size):
            raise damaged(folder, ValueError(f"a part of {name} is missing"))
    return {name: (entry.size, entry.properties.dtype) for name, entry in found.items()}


def read_into(checkpoint: str, what: str, tensors: dict[str, torch.Tensor]) -> None:
    """Fills `tensors`, whole or parts of this process, in place; needs no other process.

    Raises:
        MisconfigurationException: for damaged files, or shapes that do not fit.
    """
    import torch.distributed.checkpoint as dcp

    folder = os.path.join(checkpoint, FOLDER, what)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # it is meant so
            dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(folder), no_dist=True)
    except dcp.CheckpointException as error:
        raise damaged(folder, Exception(str(_first_of(error)))) from error
