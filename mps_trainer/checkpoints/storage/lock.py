"""Allows one run at a time in an output folder."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator

from ...errors import MisconfigurationException
from ..folders import LOCK

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_TAKEN = (errno.EACCES, errno.EAGAIN)


@contextlib.contextmanager
def only_run_in(output_dir: str) -> Iterator[None]:
    """Keeps other runs from training into `output_dir` inside. The lock ends with the process, however that ends.

    Where the file system has no locks, only runs of this process are kept out.

    Raises:
        MisconfigurationException: if another process, or another thread or run of this one, trains into the folder.
    """
    path = os.path.join(os.path.realpath(output_dir), LOCK)
    with _only_one_here(path):
        descriptor = _locked(path)
        try:
            yield
        finally:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.remove(path)
                os.close(descriptor)


_held: set[tuple[int, str]] = set()  # by runs of this process, which the operating system lets lock a file twice
_guard = threading.Lock()


@contextlib.contextmanager
def _only_one_here(path: str) -> Iterator[None]:
    held = os.getpid(), path  # a forked process does not hold what its parent does
    with _guard:
        if held in _held:
            raise _taken(path, f"in this process, {os.getpid()}")
        _held.add(held)
    try:
        yield
    finally:
        _held.discard(held)


def _taken(path: str, holder: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"Another run, {holder}, is training into {os.path.dirname(path)}. Wait until it has ended, or give "
        "output_dir another folder."
    )


def _locked(path: str) -> int | None:
    """Returns the descriptor of the locked file; None where locking is not possible."""
    if fcntl is None:
        return None
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return None  # what cannot be written here is told when something is
        try:
            # of the process, and not, like flock, of its workers as well, which outlive it for a while if it is killed
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = _read(descriptor)
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                break
        except FileNotFoundError:  # removed by a run that has just ended
            pass
        except OSError as error:
            holder = _read(descriptor)
            os.close(descriptor)
            if error.errno not in _TAKEN:
                logger.debug("No lock in %s: %s.", path, error)
                return None
            raise _taken(path, holder or "of another process") from error
        os.close(descriptor)
    if holder:
        logger.info("The previous run, %s, did not end normally.", holder)
    with contextlib.suppress(OSError):  # the disk is full: it is locked all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return descriptor


def _read(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace").strip()
