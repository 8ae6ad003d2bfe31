"""Reads files and pipes that users name, up to a maximum size and a maximum wait."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

MOST_BYTES = 1_000_000  # a file that a person writes has some thousand
PATIENCE = 30.0  # seconds without data after which a pipe counts as one that nothing is written to


def read_bytes(path: str | Path, most_bytes: int) -> bytes:
    """Returns the content of the file or pipe at `path`.

    Raises:
        OSError: if it cannot be opened or read, or is a folder.
        ValueError: if it has more than `most_bytes` bytes, or is a pipe to which nothing is written.
    """
    content, at_once = b"", getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for a writer
    with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        may_wait = not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        while len(content) <= most_bytes:
            if may_wait and not select.select([file], [], [], PATIENCE)[0]:
                raise ValueError(f"nothing was written to it for {PATIENCE:g} seconds")
            if not (part := file.read(most_bytes + 1 - len(content))):
                return content
            content += part
    raise ValueError(f"it has more than {most_bytes:,} bytes")
