"""Writes sharded tensors, each process its part. Any number of processes can read them.

Uses PyTorch's Distributed Checkpoint with its storage in safetensors: its own format lists the parts in a pickle,
which could run code when it is read. Here the files' headers list them.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from typing import Any

import torch

from ..errors import MisconfigurationException
from .storage.files import damaged, read_json

FOLDER = "shards"
WEIGHTS, OPTIMIZER = "model", "optimizer"  # in it, a folder each
REST = "optimizer_rest.pt"  # what of an optimizer's state is no tensor
_PARTS = "parts.json"  # in the folder of the parts: their names
_SUFFIX = ".safetensors"


def has_shards(checkpoint: str, what: str = WEIGHTS) -> bool:
    return os.path.isdir(os.path.join(checkpoint, FOLDER, what))


def require_able() -> None:
    """Raises MisconfigurationException if this torch cannot write or read them."""
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "HuggingFaceStorageWriter"):
        raise MisconfigurationException(
            f"state_dict_type SHARDED_STATE_DICT needs torch 2.8 or newer, and this is {torch.__version__}. Update "
            "it, or leave state_dict_type out of fsdp_config, which saves whole tensors."
        )


def write(checkpoint: str, what: str, tensors: dict[str, torch.Tensor], group: Any = None) -> None:
    """Writes the parts of `tensors`, each process its own; all have to call it, with the same names.

    Raises:
        OSError: if the disk of one of them does not take it, in all of them.
    """
    import torch.distributed.checkpoint as dcp

    folder = os.path.join(checkpoint, FOLDER, what)
    writer = dcp.HuggingFaceStorageWriter(folder, save_distributed=True)
    try:
        dcp.save(tensors, storage_writer=writer, process_group=group)
    except dcp.CheckpointException as error:
        raise _first_of(error) from error


def list_parts(checkpoint: str) -> None:
    """Writes the list of parts after all processes have written theirs. One process calls it. Raises OSError."""
    for what in os.listdir(os.path.join(checkpoint, FOLDER)):
        folder = os.path.join(checkpoint, FOLDER, what)
        with open(os.path.join(folder, _PARTS), "w", encoding="utf-8") as file:
            json.dump(_parts(folder), file)


def _parts(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))


def _first_of(error: Any) -> BaseException:
    """Returns one error for all processes: an OSError if there is one, as on a full disk, else the first."""
    failed = [failure[0] for failure in error.failures.values()]
    return next((each for each in failed if isinstance(each, OSError)), failed[0])


def listed(checkpoint: str, what: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Returns shape and number format of the stored tensors, by name.

    Raises:
        MisconfigurationException: for damaged files.
    """
    return {name: (entry.size, entry.properties.dtype) for name, entry in _metadata(checkpoint, what).items()}


def read_into(checkpoint: str, what: str, tensors: dict[str, torch.Tensor]) -> None:
    """Fills `tensors`, whole or parts of this process, in place; needs no other process.

    Raises:
        MisconfigurationException: for damaged files, or shapes that do not fit.
    """
    import torch.distributed.checkpoint as dcp

    folder = os.path.join(checkpoint, FOLDER, what)
    _metadata(checkpoint, what)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # as is meant
            dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(folder), no_dist=True)
    except dcp.CheckpointException as error:
        raise damaged(folder, Exception(str(_first_of(error)))) from error


def read(checkpoint: str, what: str) -> dict[str, torch.Tensor]:
    """Returns all stored tensors, whole, on the host.

    Raises:
        MisconfigurationException: for damaged files.
    """
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in listed(checkpoint, what).items()}
    read_into(checkpoint, what, tensors)
    return tensors


def _metadata(checkpoint: str, what: str) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp
    from safetensors import SafetensorError

    folder = os.path.join(checkpoint, FOLDER, what)
    try:
        _require_parts(folder)
        found: dict[str, Any] = dict(dcp.HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata)
    except MisconfigurationException:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise damaged(folder, error) from error
    # a part that is missing would be read as whatever is in memory
    for name, entry in found.items():
        there = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if there != math.prod(entry.size):
            raise damaged(folder, ValueError(f"of {name}, a part is missing"))
    return found


def _require_parts(folder: str) -> None:
    """Raises ValueError if a part is missing that was written."""
    path = os.path.join(folder, _PARTS)
    if os.path.isfile(path):
        names = read_json(path)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{_PARTS} is not a list of names")
        if missing := sorted(set(names) - set(_parts(folder))):
            raise ValueError(f"{missing[0]} is missing")
