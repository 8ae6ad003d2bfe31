"""Reads the tensors of a safetensors file while they are copied into a model, a block at a time."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import safe_open
from torch.utils._pytree import tree_map_only

BLOCK = 8 << 20  # bytes: whole tensors would be too large, the embeddings of a small model are a third of its weights
_Tensor: Any = torch.Tensor
_METADATA = (_Tensor.shape.__get__, _Tensor.dtype.__get__)


class StoredTensor(torch.Tensor):
    """A tensor in a file. Only its shape and number format are in memory.

    `parameter.copy_(stored)` reads it block by block, so `load_state_dict` needs no second copy of the weights. Every
    other operation, such as that of a hook, gets the whole tensor.
    """

    _file: _MappedFile
    _name: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METADATA:
            return super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.copy_ and isinstance(args[1], cls) and args[1]._fits(args[0]):
            return args[1]._copy_to(args[0])
        args, kwargs = tree_map_only(cls, lambda stored: stored._file.read(stored._name), (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fits(self, target: torch.Tensor) -> bool:
        # a subclass, such as a quantized weight, gets the whole tensor
        return type(target) in (torch.Tensor, torch.nn.Parameter) and target.shape == self.shape

    def _copy_to(self, target: torch.Tensor) -> torch.Tensor:
        count = self.shape[0]
        rows = max(1, BLOCK // max(1, self.shape[1:].numel() * self.dtype.itemsize))
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
        if self._bytes_read >= BLOCK:
            self._bytes_read, self._file = 0, safe_open(self._path, framework="pt")
        found = self._file.get_tensor(name) if rows is None else self._file.get_slice(name)[rows]
        self._bytes_read += found.nbytes
        return found


def open_tensors(path: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file, on the CPU. Those with rows are read when they are used."""
    return _MappedFile(path).tensors()
