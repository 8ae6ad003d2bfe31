"""Reads files that users name, up to a maximum size. Refuses pipes and devices: reading one may never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 1_000_000  # of a file that a person writes; a real one has some thousand


def read_bytes(path: str | Path, most_bytes: int) -> bytes:
    """Returns the content of the file at `path`.

    Raises:
        OSError: if it cannot be opened or read, or is a folder.
        ValueError: if it is not a regular file, or has more than `most_bytes` bytes.
    """
    look = os.stat(path)  # before it is opened, which waits for a writer if it is a pipe
    if stat.S_ISDIR(look.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(look.st_mode):
        raise ValueError("it is not a regular file")
    if look.st_size <= most_bytes:
        with open(path, "rb") as file:
            content = file.read(most_bytes + 1)
        if len(content) <= most_bytes:  # a file under /proc says that it has none
            return content
    raise ValueError(f"it has more than {most_bytes:,} bytes")


def read_text(path: str | Path, most_bytes: int, encoding: str = "utf-8") -> str:
    """Returns the content of the file at `path` as text.

    Raises:
        OSError: as `read_bytes`.
        ValueError: as `read_bytes`, and if it is not text in this encoding.
    """
    return read_bytes(path, most_bytes).decode(encoding)
