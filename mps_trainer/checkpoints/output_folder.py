"""Checks and locks the output folder that the processes of a run share."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..arguments.sharding import SHARDED
from ..distributed.processes import Processes
from ..errors import MisconfigurationException
from . import folders
from .background import Background
from .storage.lock import only_run_in

if TYPE_CHECKING:
    from ..training_args import TrainingArguments


def require_shared(folder: str, processes: Processes, why: str) -> None:
    """Raises unless all processes see one folder; all of them have to call it.

    Args:
        why: they have to see the same `folder`, for the error.

    Raises:
        MisconfigurationException: in all of them, if one does not see what the first one writes there.
    """
    if not processes.is_distributed:
        return

    def leave_a_sign() -> str:
        os.makedirs(folder, exist_ok=True)
        sign = os.path.join(os.path.abspath(folder), f".seen-by-all-{uuid.uuid4().hex}")
        with open(sign, "w", encoding="utf-8"):
            return os.path.basename(sign)

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
def only_run_of_all_in(folder: str, processes: Processes, writes: bool) -> Iterator[None]:
    """Keeps other runs from training into `folder` inside. With `writes`, this process holds the lock.

    Raises:
        MisconfigurationException: in all processes, if one of those that write finds another run there.
    """
    with contextlib.ExitStack() as stack:
        refusal = None
        if writes:
            try:
                stack.enter_context(only_run_in(folder))
            except MisconfigurationException as error:
                refusal = str(error)
        refusals = [each for each in processes.gather(refusal) if each is not None]
        if refusals:
            shared = " If this run wrote them, the machines share the folder: leave save_on_each_node out."
            raise MisconfigurationException(refusals[0] + (shared if processes.is_distributed else ""))
        yield


@contextlib.contextmanager
def own_run_folder(run_dir: str, args: TrainingArguments, processes: Processes) -> Iterator[None]:
    """Locks the output folder inside and removes unfinished checkpoints from `run_dir`.

    Raises:
        MisconfigurationException: if another run is there, or a process does not see a folder that all have to share.
    """
    if (why := _why_shared(args)) is not None:
        require_shared(run_dir, processes, why)
    with only_run_of_all_in(args.output_dir, processes, args.should_save):
        if args.should_save:
            Background.wait_for_all()
            folders.clear_left_overs(run_dir)
        yield


def _why_shared(args: TrainingArguments) -> str | None:
    """Returns the reason why all processes have to see one output folder; None if they need not."""
    config: Any = args.fsdp_config
    if args.fsdp and config.get("state_dict_type") == SHARDED:
        return "each writes its part of a checkpoint there"
    if args.load_best_model_at_end and not args.save_on_each_node:
        return "load_best_model_at_end=True has all of them read the best checkpoint"
    return None
