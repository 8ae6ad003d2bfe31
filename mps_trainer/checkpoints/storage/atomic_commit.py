"""Commits a written checkpoint: manifest, flush, rename; and explains a disk that fails."""

from __future__ import annotations

import errno
import os
import re
import tempfile

from safetensors import SafetensorError

from .. import folders, manifest
from .files import flush_tree

# How torch, C++ and safetensors say that a file could not be written, which they do not say with an OSError.
_MESSAGES = (
    *("PytorchStreamWriter failed", "unexpected pos", "file write failed", "open file failed", "iostream error"),
    *("I/O error", "IoError", "Io("),
)

_NUMBER = re.compile(r"\(os error (\d+)\)")
_REASONS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE)
_PROBE = 1 << 20  # bytes


def seal(unfinished: str, folder: str, step: int) -> None:
    """Turns `unfinished` into the checkpoint `folder`: writes the manifest, flushes to disk, then renames.

    Raises:
        OSError: if the disk is full or fails; `folder` is as it was then.
    """
    manifest.write(unfinished, step, folders.next_save(os.path.dirname(folder)))
    flush_tree(unfinished)
    folders.put_in_place(unfinished, folder)
    manifest.note_whole(folder)


def why_not_written(error: BaseException, folder: str) -> str | None:
    """Returns why a write to the disk failed, or None if `error` has another cause.

    Args:
        error: what writing raised.
        folder: where it was written. Where the error does not say why, a small file is tried there.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return _in_words(error)
    text = str(error)
    if number := _NUMBER.search(text):  # of a library in Rust, tokenizers for one, whatever its type
        return _of_number(int(number[1]))
    if not isinstance(error, (SafetensorError, RuntimeError, OSError)):
        return None
    if not any(message in text for message in _MESSAGES):
        return None
    said = next((number for number in _REASONS if os.strerror(number) in text), None)
    if said is not None:
        return _of_number(said)
    return _in_words(error.__context__) or _ask_the_disk(folder) or text.splitlines()[0]


def _ask_the_disk(folder: str) -> str | None:
    """Returns why a file of 1 MiB cannot be written to `folder`, or None if it can."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return _in_words(error)
    return None


def _of_number(number: int) -> str | None:
    return _in_words(OSError(number, os.strerror(number)))


def _in_words(error: BaseException | None) -> str | None:
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    if error.errno == errno.EDQUOT:
        return "the disk quota is used up"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "permission denied"
    return (error.strerror or str(error)).lower()
