"""Making sure that what was written is on the disk, and not only on its way there."""

from __future__ import annotations

import contextlib
import os
import sys


def flush_tree(folder: str) -> None:
    """Brings every file below `folder`, and the folders themselves, to the disk."""
    for path, _, names in os.walk(folder):
        for name in names:
            flush(os.path.join(path, name))
        flush(path)


def flush(path: str) -> None:
    """Brings a file's contents, or a folder's list of names, to the disk.

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
