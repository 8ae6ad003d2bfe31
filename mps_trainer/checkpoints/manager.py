"""Writes the checkpoints of a run and remembers a failed one.

The files go to an unfinished folder, which then takes the checkpoint's name: a checkpoint that exists is whole.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers.trainer_callback import TrainerState

from ..errors import CheckpointError
from . import folders
from .background import Background
from .storage.atomic_commit import seal, why_not_written

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Writer:
    """Writes the files of a checkpoint into a folder, all but trainer_state.json and the manifest.

    Attributes:
        write: writes them, in one process.
        write_part: writes the part of this process, before that; nothing where one process writes all files.
        in_background: True if `write` may run in a thread while training goes on.
        rank: this process's among those that write together.
        gather: returns what each of them gives, in all of them.
    """

    write: Callable[[str], None]
    write_part: Callable[[str], None] = lambda folder: None
    in_background: bool = False
    rank: int = 0
    gather: Callable[[Any], list[Any]] = lambda thing: [thing]


class CheckpointManager:
    """Writes a run's checkpoints one at a time. Training continues if one cannot be written.

    Args:
        write_state: writes a state as the JSON file of this path.
    """

    def __init__(self, write_state: Callable[[TrainerState, str], None]) -> None:
        self.background = Background()
        self.unsaved: str | None = None  # what became of the last checkpoint, if the disk did not take it
        self._write_state = write_state

    def save(
        self,
        run_dir: str,
        state: TrainerState,
        writer: Writer,
        on_saved: Callable[[], None],
        on_unsaved: Callable[[], None],
    ) -> None:
        """Writes the checkpoint of `state` into `run_dir`. All processes that write together must call it.

        Args:
            on_saved: called once the checkpoint is there, by the first of them, in the thread that wrote it.
            on_unsaved: called instead if the disk did not take it.
        """
        run_dir = os.path.abspath(run_dir)  # the working folder may change while this is written in the background

        def save() -> None:
            folder = folders.checkpoint_folder(run_dir, state.global_step)
            why = self._why_not_written(folder, folders.unfinished_folder(run_dir, state.global_step), state, writer)
            if writer.rank:
                return
            if why is None:
                self.unsaved = None
                on_saved()
            else:
                self._note_unsaved(folder, why)
                on_unsaved()

        if writer.in_background:
            self.background.start(save)
        else:
            save()

    def require_saved(self) -> None:
        """Raises CheckpointError if the last checkpoint of the run could not be saved."""
        if self.unsaved is not None:
            raise CheckpointError(
                f"Training has ended, but {self.unsaved} Make room or give permission, then save the model that is in "
                "memory with save_model(), or resume from the last checkpoint."
            )

    def _why_not_written(self, folder: str, unfinished: str, state: TrainerState, writer: Writer) -> str | None:
        """Writes the checkpoint. Returns in all processes why it could not be written, or None."""

        def begin() -> None:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.makedirs(unfinished)

        def finish() -> None:
            writer.write(unfinished)
            self._write_state(state, os.path.join(unfinished, folders.STATE))
            seal(unfinished, folder, state.global_step)

        part, is_first = functools.partial(writer.write_part, unfinished), writer.rank == 0
        for work in (begin if is_first else None, part, finish if is_first else None):
            why = _attempted(work, unfinished, writer)
            if why is not None:
                return why
        return None

    def _note_unsaved(self, folder: str, why: str) -> None:
        whole = folders.find_checkpoints(os.path.dirname(folder))
        left = f"The last one is {whole[-1]}." if whole else "There is none."
        logger.error(
            "%s could not be saved: %s. %s Training continues. Free some disk space or allow writing before the "
            "next checkpoint is due.",
            folder, why, left,
        )  # fmt: skip
        self.unsaved = f"{folder} could not be saved: {why}. {left}"


def _attempted(work: Callable[[], None] | None, unfinished: str, writer: Writer) -> str | None:
    """Returns in all processes why one of them could not write to `unfinished`, or None.

    Where `work` fails in one of them, the folder is gone.

    Raises:
        Exception: what else `work` raises; a RuntimeError in the others then.
    """
    why, error = None, None
    try:
        if work is not None:
            work()
    except Exception as raised:
        why = why_not_written(raised, unfinished)  # asks the disk while it is as full as it was
        error = raised if why is None else None
    told = writer.gather((why, None if error is None else f"{type(error).__name__}: {error}"))
    if writer.rank == 0 and any(each != (None, None) for each in told):
        shutil.rmtree(unfinished, ignore_errors=True)
    if error is not None:
        raise error
    for rank, (_, failed) in enumerate(told):
        if failed is not None:
            raise RuntimeError(f"Process {rank} has failed, so this one, process {writer.rank}, ends too. {failed}")
    return next((reason for reason, _ in told if reason is not None), None)
