"""Reads the tensors of a checkpoint's files without running code from them, and weights a block at a time."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from safetensors import safe_open
from torch.utils._pytree import tree_map_only

from ..errors import MisconfigurationException
from .files import damaged, require_file

_BLOCK = 8 << 20  # bytes: whole tensors would be too large, the embeddings of a small model are a third of its weights


def read_tensors(path: str, allowed: list[Any] | None = None) -> Any:
    """Returns the tensors, plain containers and `allowed` objects that `torch.save` wrote, on the CPU.

    Raises:
        MisconfigurationException: for a file that is damaged, or that would run code when unpickled.
    """
    require_file(path)
    try:
        with torch.serialization.safe_globals(allowed or []):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise MisconfigurationException(
            f"{path} is refused: it has something other than tensors and plain values, which could run code when "
            "loaded, or it is damaged. Resume from another checkpoint."
        ) from error
    except Exception as error:  # an edited file takes the unpickler wherever it likes
        raise damaged(path, error) from error


def read_safetensors(path: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file, which are read when they are used.

    Raises:
        MisconfigurationException: for a damaged file.
    """
    require_file(path)
    try:
        return _MappedFile(path).tensors()
    except Exception as error:
        raise damaged(path, error) from error


# Weights that are read while they are copied into a model, a block at a time

_Tensor: Any = torch.Tensor
_METADATA = (_Tensor.shape.__get__, _Tensor.dtype.__get__)


class StoredTensor(torch.Tensor):
    """A tensor in a file. Only its shape and number format are in memory.

    `parameter.copy_(stored)` reads it block by block, so `load_state_dict` needs no second copy of the weights. Every
    other operation, such as one in a hook, gets the whole tensor.
    """

    _file: _MappedFile
    _name: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METADATA:
            return super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.copy_ and isinstance(args[1], cls):
            target, stored = args
            # a subclass, such as a quantized weight, gets the whole tensor
            if type(target) in (torch.Tensor, torch.nn.Parameter) and target.shape == stored.shape:
                return stored._copy_to(target)
        args, kwargs = tree_map_only(cls, lambda stored: stored._file.read(stored._name), (args, kwargs or {}))
        return func(*args, **kwargs)

    def _copy_to(self, target: torch.Tensor) -> torch.Tensor:
        count = self.shape[0]
        rows = max(1, _BLOCK // max(1, self.shape[1:].numel() * self.dtype.itemsize))
        for start in range(0, count, rows):
            end = min(start + rows, count)
            target[start:end].copy_(self._file.read(self._name, slice(start, end)))
        return target


class _MappedFile:
    """A safetensors file that is mapped anew after each block, because the pages that were read stay in memory.

    Without a mapping (`backend="pread"`), safetensors 0.8 reads a whole tensor for each of its rows.
    """

    def __init__(self, path: str) -> None:
        self._path, self._bytes_read = path, 0
        self._file: Any = safe_open(path, framework="pt")

    def tensors(self) -> dict[str, torch.Tensor]:
        names: list[str] = self._file.keys()
        return {name: self._stored(name) for name in names}

    def _stored(self, name: str) -> torch.Tensor:
        shape = self._file.get_slice(name).get_shape()
        if not shape or not shape[0]:
            return self.read(name).clone()
        like = torch.empty(shape, dtype=self.read(name, slice(0, 1)).dtype, device="meta")
        tensor = torch.Tensor._make_subclass(StoredTensor, like)
        tensor._file, tensor._name = self, name
        return tensor

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Returns `rows` of a tensor, or all of it, in the pages of the file."""
        if self._bytes_read >= _BLOCK:
            self._bytes_read, self._file = 0, safe_open(self._path, framework="pt")
        found = self._file.get_tensor(name) if rows is None else self._file.get_slice(name)[rows]
        self._bytes_read += found.nbytes
        return found
