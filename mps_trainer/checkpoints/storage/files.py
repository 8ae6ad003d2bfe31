"""Reads the files of a checkpoint without running code from them, and flushes written files to disk."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import stat
import sys
from typing import Any

import torch

from ...errors import MisconfigurationException

LARGEST_JSON = 256 << 20  # bytes: the log of two million steps
MOST_VALUES = 10_000_000  # that many empty lists, the most that fit in these bytes, take 700 MB of memory


def require_file(path: str, largest: int | None = None) -> None:
    """Raises MisconfigurationException for a file that is too large or not a regular file."""
    try:
        look = os.stat(path)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if not stat.S_ISREG(look.st_mode):
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


def read_object(path: str, required: list[str]) -> dict[str, Any]:
    """Returns a JSON object with the keys `required`. Raises MisconfigurationException for anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise damaged(path, TypeError("it has no JSON object"))
    missing = [name for name in required if name not in value]
    if missing:
        raise damaged(path, KeyError(f"{missing[0]} is missing"))
    return value


def read_tensors(path: str, allowed: list[Any] | None = None, required: list[str] | None = None) -> Any:
    """Returns the tensors, plain containers and `allowed` objects that `torch.save` wrote, on the CPU.

    Args:
        required: keys that it must have, if it must be a dictionary.

    Raises:
        MisconfigurationException: for a file that is damaged, or that would run code when unpickled.
    """
    require_file(path)
    try:
        with torch.serialization.safe_globals(allowed or []):
            value = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise MisconfigurationException(
            f"{path} is refused: it has something other than tensors and plain values, which could run code when "
            "loaded, or it is damaged. Resume from another checkpoint."
        ) from error
    except Exception as error:  # an edited file takes the unpickler wherever it likes
        raise damaged(path, error) from error
    for name in required or []:
        if not isinstance(value, dict) or name not in value:
            raise damaged(path, KeyError(f"{name} is missing"))
    return value


def read_safetensors(path: str) -> dict[str, torch.Tensor]:
    """Raises MisconfigurationException for a damaged file."""
    from safetensors.torch import load_file

    require_file(path)
    try:
        return load_file(path)
    except Exception as error:
        raise damaged(path, error) from error


def damaged(path: str, error: Exception) -> MisconfigurationException:
    """Returns the error for a damaged file, with the reason that `error` gives."""
    message = getattr(error, "strerror", None) or (error.args[0] if error.args else "")
    why = ("".join(str(message).splitlines()[:1]) or type(error).__name__)[:200].rstrip(". ")
    return MisconfigurationException(f"{path} is damaged and cannot be read: {why}. Resume from another checkpoint.")


def flush_tree(folder: str) -> None:
    """Flushes every file below `folder`, and the folders themselves, to disk."""
    for path, _, names in os.walk(folder):
        for name in names:
            flush(os.path.join(path, name))
        flush(path)


def flush(path: str) -> None:
    """Flushes a file's contents, or a folder's list of names, to disk.

    Raises:
        OSError: if the disk is full or fails, which writing alone does not always show.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if sys.platform == "darwin":
            # fsync there leaves the data in the drive's own cache, which a battery that dies takes with it
            import fcntl

            with contextlib.suppress(OSError):  # not every file system has it
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
                return
        if os.name != "nt" or not os.path.isdir(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
