"""Reads the files of a checkpoint without running code from them, and explains a disk that fails."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import stat
import tempfile
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.utils._pytree import tree_map_only

from ..errors import MisconfigurationException

LARGEST_JSON = 256 << 20  # bytes: the log of two million steps
MOST_VALUES = 10_000_000  # so many empty lists, the most that fit in these bytes, take 700 MB of memory
# How torch, C++ and safetensors say that a file could not be written, which they do not say with an OSError.
_NOT_WRITTEN = (
    *("PytorchStreamWriter failed", "unexpected pos", "file write failed", "open file failed", "iostream error"),
    *("I/O error", "IoError", "Io("),
)
_REASONS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE)
_PROBE = 1 << 20  # bytes
_BLOCK = 8 << 20  # bytes: whole tensors would be too large, the embeddings of a small model are a third of its weights


def require_file(path: str, largest: int | None = None) -> None:
    """Raises MisconfigurationException for a file that is too large or not a regular file."""
    try:
        look = os.stat(path)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if not stat.S_ISREG(look.st_mode):  # reading a pipe would wait for the process that writes to it
        raise damaged(path, ValueError("it is not a regular file"))
    if largest is not None and look.st_size > largest:
        raise damaged(path, ValueError(f"it has {look.st_size:,} bytes, and {largest:,} are the most that are read"))


def read_json(path: str) -> Any:
    """Raises MisconfigurationException for a file that is not JSON, or too large to be a checkpoint's."""
    require_file(path, LARGEST_JSON)
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_JSON)
        if data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        return json.loads(data.decode("utf-8"))
    except (ValueError, OSError) as error:
        raise damaged(path, error) from error
    except RecursionError as error:
        raise damaged(path, ValueError("it is nested too deeply")) from error


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


def is_there(path: str) -> bool:
    """Returns True for a file, False for nothing. Raises MisconfigurationException for a folder or a broken link."""
    if os.path.isfile(path):
        return True
    if os.path.lexists(path):
        raise damaged(path, ValueError("it is a folder, or a link that leads nowhere"))
    return False


def damaged(path: str, error: Exception) -> MisconfigurationException:
    """Returns the error for a damaged file, with the reason that `error` gives."""
    message = getattr(error, "strerror", None) or (error.args[0] if len(error.args) == 1 else error)
    why = ("".join(str(message).splitlines()[:1]) or type(error).__name__)[:200].rstrip(". ")
    return MisconfigurationException(f"{path} is damaged and cannot be read: {why}. Resume from another checkpoint.")


# Weights that are read while they are copied into a model, a block at a time

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


# A disk that fails


def why_not_written(error: BaseException, folder: str) -> str | None:
    """Returns why a write to the disk failed, or None if `error` has another cause.

    Args:
        error: what writing raised.
        folder: where it was written. Where the error does not say why, a small file is tried there.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return _in_words(error)
    text = str(error)
    if match := re.search(r"\(os error (\d+)\)", text):  # from a library in Rust, such as tokenizers
        return _in_words(OSError(int(match[1]), os.strerror(int(match[1]))))
    is_of_disk = isinstance(error, (SafetensorError, RuntimeError, OSError))
    if not is_of_disk or not any(message in text for message in _NOT_WRITTEN):
        return None
    for number in _REASONS:
        if os.strerror(number) in text:
            return _in_words(OSError(number, os.strerror(number)))
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as failed:
        return _in_words(failed)
    return text.splitlines()[0]


def _in_words(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    if error.errno == errno.EDQUOT:
        return "the disk quota is used up"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "permission denied"
    return (error.strerror or str(error)).lower()
