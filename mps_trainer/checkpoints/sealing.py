"""The last steps of writing a checkpoint: manifest, disk, name; and what to make of a disk that cannot."""

from __future__ import annotations

import errno
import os
import re

from safetensors import SafetensorError

from . import folders, manifest
from .durable import flush_tree

# How torch and safetensors say that a file could not be written, which they do not say with an OSError.
_MESSAGES = ("PytorchStreamWriter failed", "unexpected pos", "file write failed", "I/O error", "IoError", "Io(")

_NUMBER = re.compile(r"\(os error (\d+)\)")


def seal(unfinished: str, folder: str, step: int) -> None:
    """Makes the files in `unfinished` the checkpoint `folder`: listed, on the disk, under its name, in this order.

    Raises:
        OSError: if the disk is full or fails; `folder` is as it was then.
    """
    manifest.write(unfinished, step)
    flush_tree(unfinished)
    folders.put_in_place(unfinished, folder)
    manifest.note_whole(folder)


def why_not_written(error: BaseException) -> str | None:
    """Why the disk did not take what was written, in words; None if `error` says something else."""
    if isinstance(error, OSError) and error.errno is not None:
        return _in_words(error)
    if number := _NUMBER.search(str(error)):  # of a library in Rust, tokenizers for one, whatever its type
        return _in_words(OSError(int(number[1]), os.strerror(int(number[1]))))
    is_writer = isinstance(error, (SafetensorError, RuntimeError, OSError))
    if not is_writer or not any(message in str(error) for message in _MESSAGES):
        return None
    return _in_words(error.__context__) or str(error).splitlines()[0]


def _in_words(error: BaseException | None) -> str | None:
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "permission denied"
    return (error.strerror or str(error)).lower()
