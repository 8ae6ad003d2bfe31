"""Reads the JSON files of a checkpoint, and explains damaged files and a disk that fails. Loads no torch."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
from typing import Any

from safetensors import SafetensorError

from ..errors import MisconfigurationException

LARGEST_JSON = 256 << 20  # bytes: the log of two million steps
MOST_VALUES = 10_000_000  # so many empty lists, the most that fit in these bytes, take 700 MB of memory
# Messages of torch, C++ and safetensors for a file that could not be written. They raise no OSError for it.
_NOT_WRITTEN = (
    *("PytorchStreamWriter failed", "unexpected pos", "file write failed", "open file failed", "iostream error"),
    *("I/O error", "IoError", "Io("),
)
_REASONS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE)
_PROBE = 1 << 20  # bytes


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


# A disk that fails


def why_not_written(error: BaseException, folder: str) -> str | None:
    """Returns why a write to the disk failed, or None if `error` has another cause.

    Args:
        error: the error that writing raised.
        folder: the folder of the file. If the error does not say why, a small file is written there.
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
