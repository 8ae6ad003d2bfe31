"""Keeps one run at a time in an output folder, which the processes of the run share."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..arguments.sharding import SHARDED
from ..distributed.processes import Processes
from ..errors import MisconfigurationException
from . import folders
from .checkpoints import wait_for_background

if TYPE_CHECKING:
    from ..training_args import TrainingArguments

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_held: set[tuple[int, str]] = set()  # the system lets one process lock a file twice
_guard = threading.Lock()


@contextlib.contextmanager
def own_run_folder(run_dir: str, args: TrainingArguments, processes: Processes) -> Iterator[None]:
    """Locks the output folder inside and removes unfinished checkpoints from `run_dir`.

    Raises:
        MisconfigurationException: if another run is there, or a process does not see a folder that all have to share.
    """
    config: Any = args.fsdp_config
    if args.fsdp and config.get("state_dict_type") == SHARDED:
        require_shared(run_dir, processes, "each writes its part of a checkpoint there")
    elif args.load_best_model_at_end and not args.save_on_each_node:
        require_shared(run_dir, processes, "load_best_model_at_end=True has all of them read the best checkpoint")
    with contextlib.ExitStack() as stack:
        refusal = None
        if args.should_save:
            try:
                stack.enter_context(only_run_in(args.output_dir))
            except MisconfigurationException as error:
                refusal = str(error)
        refusals = [each for each in processes.gather(refusal) if each is not None]
        if refusals:
            shared = " If this run wrote them, the machines share the folder: leave save_on_each_node out."
            raise MisconfigurationException(refusals[0] + (shared if processes.is_distributed else ""))
        if args.should_save:
            wait_for_background()
            folders.clear_left_overs(run_dir)
        yield


def make_folder(path: str) -> None:
    """Creates the output folder before training starts, so that an error does not come hours later.

    Raises:
        MisconfigurationException: if it cannot be made or written to.
    """
    why = None
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK):
            why = "permission denied"
    except OSError as error:
        why = error.strerror or str(error)
    if why is not None:
        raise MisconfigurationException(f"Nothing can be written to output_dir {path}: {why}. Name another folder.")


def require_shared(folder: str, processes: Processes, why: str) -> None:
    """Raises unless all processes see one folder; all of them have to call it.

    Args:
        why: the reason why they have to, for the error.

    Raises:
        MisconfigurationException: in all of them, if one does not see what the first one writes there.
    """
    if not processes.is_distributed:
        return

    def leave_a_sign() -> str:
        os.makedirs(folder, exist_ok=True)
        name = f".seen-by-all-{uuid.uuid4().hex}"
        with open(os.path.join(folder, name), "w", encoding="utf-8"):
            return name

    sign = os.path.join(folder, processes.first_does(leave_a_sign))
    see = processes.gather(os.path.exists(sign))
    if processes.is_first:
        with contextlib.suppress(OSError):
            os.remove(sign)
    if not all(see):
        raise MisconfigurationException(
            f"Process {see.index(False)} does not see what process 0 writes into {folder}, and {why}. Give "
            "output_dir the path of a folder that all machines share, or train on one machine."
        )


@contextlib.contextmanager
def only_run_in(output_dir: str) -> Iterator[None]:
    """Keeps other runs from training into `output_dir` inside. The lock ends with the process, however that ends.

    Where the file system has no locks, only runs of this process are kept out.

    Raises:
        MisconfigurationException: if another process, or another thread or run of this one, trains into the folder.
    """
    path = os.path.join(os.path.realpath(output_dir), folders.LOCK)
    held = os.getpid(), path  # a forked process does not hold what its parent does
    descriptor = None
    with _guard:
        if held in _held:
            raise _taken(path, f"in this process, {os.getpid()}")
        _held.add(held)
    try:
        descriptor = _locked(path)
        yield
    finally:
        try:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.remove(path)
                os.close(descriptor)
        finally:  # a second Ctrl-C may come above, and the folder would be taken as long as the notebook runs
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
            return None  # the first save says that nothing can be written here
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        try:
            # lockf, not flock: the workers of a killed run, which outlive it for a while, would keep a flock
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                break
        except FileNotFoundError:  # a run that has just ended removed it
            pass
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                logger.debug("No lock in %s: %s.", path, error)
                return None
            raise _taken(path, holder or "of another process") from error
        os.close(descriptor)
    if holder:
        logger.info("The previous run, %s, did not end normally.", holder)
    with contextlib.suppress(OSError):  # the disk is full, and the file is locked all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return descriptor
