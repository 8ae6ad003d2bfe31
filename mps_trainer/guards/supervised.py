"""Notes the progress of a run for `mps-trainer --restarts`, and knows which restart the run is."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from io import FileIO
from typing import Any

import psutil

from ..checkpoints import folders
from ..distributed.processes import Processes
from ..errors import with_causes
from ..launching.restarts import ALIVE, ERROR, GPU, MEMORY, OTHER, PROGRESS, Progress, Supervision
from .gpu_faults import is_gpu_fault, ran_out_of_memory
from .memory_errors import out_of_memory

logger = logging.getLogger(__name__)

_LENGTH = 4096  # bytes; each step writes the note at the same place in the file

_calls: Counter[tuple[str, str]] = Counter()  # counts calls of train() by supervisor and folder


class SupervisedRun:
    """One call of `Trainer.train` under a supervisor: `mps-trainer --restarts`, or torchrun.

    Attributes:
        run_id: stands in the manifests of its checkpoints, and is the same in each process that repeats the call. None
            for a trial: a search starts over, so no start resumes its checkpoints.
        restarts: those that the record of the run shows.
        is_restarted: True after a restart, unless there is no checkpoint of the run to resume (see
            `checkpoints.resume`).
        examples: most examples in a batch, None without a limit.
        announced: the checkpoint that the supervisor names before this start, if it has to be in this folder.
    """

    def __init__(self, supervision: Supervision, folder: str, processes: Processes, is_trial: bool = False) -> None:
        folder = os.path.abspath(folder)
        was_empty = not os.path.isdir(folder) or all(map(folders.is_left_over, os.listdir(folder)))
        self.announced: str | None = None
        last = supervision.restarts[-1] if supervision.restarts and not _calls else None
        if last is not None and last.checkpoint is not None and last.progress is not None:
            is_here = os.path.dirname(last.checkpoint) == folder
            may_resume_it = last.progress.call == 0 if is_here else was_empty
            if may_resume_it:  # else another call of train made it
                self.announced = last.checkpoint
        call = _calls[supervision.id, folder]
        _calls[supervision.id, folder] += 1
        self.run_id = None if is_trial else f"{_unique(supervision.id)}:{call}"
        self.is_restarted, self.examples = bool(supervision.restarts), supervision.examples(folder)
        died = [(each, each.progress) for each in supervision.restarts]  # None: before any call began
        self.restarts = [each for each, at in died if at is None or (at.folder, at.call) == (folder, call)]
        self._notes = supervision.notes
        self._file: FileIO | None = None
        self._supervisor: int | None = None
        if self._notes is not None and not os.path.isdir(self._notes):
            logger.warning(
                "mps-trainer has ended before training, because the script, or a program that it runs, has put itself "
                "into the background. This run does not start again if it dies. Remove that step from the script, and "
                "start `nohup mps-trainer run --restarts 3 SCRIPT &` instead."
            )
            self._notes = None
        if self._notes is not None and processes.is_first:
            with contextlib.suppress(FileNotFoundError):  # a call before this one may have left it
                os.remove(os.path.join(self._notes, ERROR))
            self._file = FileIO(os.path.join(self._notes, PROGRESS), "w")
            self._progress = Progress(folder, call, was_empty=was_empty)
            self._write(self._file)
            with contextlib.suppress(FileNotFoundError):
                no_wait = getattr(os, "O_NONBLOCK", 0)  # Windows has neither this nor the pipe
                self._supervisor = os.open(os.path.join(self._notes, ALIVE), os.O_RDONLY | no_wait)

    def note(self, step: int, examples: int) -> None:
        """Notes the steps that are done, and the examples in a batch. It costs about 10 µs."""
        if self._file is not None:
            self._write(self._file, step=step, examples=examples)
            self._end_with_supervisor()

    def end(self, error: BaseException | None) -> None:
        """Notes that the call has returned or raised `error`; of several processes the first error counts."""
        if self._notes is not None and error is not None:
            with contextlib.suppress(OSError), open(os.path.join(self._notes, ERROR), "x", encoding="utf-8") as file:
                file.write(kind_of(error))
        if self._file is not None:
            self._write(self._file, in_training=error is not None)
            self._file.close()
            self._file = None
        if self._supervisor is not None:
            os.close(self._supervisor)
            self._supervisor = None

    def _end_with_supervisor(self) -> None:
        """Asks this run to save and end if the supervisor was killed, so that it does not train on unnoticed."""
        if self._supervisor is None:
            return
        try:
            os.read(self._supervisor, 1)  # fails while the other end is open, because the supervisor never writes
        except BlockingIOError:
            return
        os.close(self._supervisor)
        self._supervisor = None
        if self._notes is not None and os.path.isdir(self._notes):
            logger.warning(
                "The process of mps-trainer that would restart this run was killed, so the run saves and ends, as "
                "after SIGTERM. Start the same command again to resume it from its checkpoint."
            )
            os.kill(os.getpid(), signal.SIGTERM)

    def _write(self, file: FileIO, **changes: Any) -> None:
        self._progress = replace(self._progress, **changes)
        with contextlib.suppress(OSError):  # the disk is full: training goes on
            file.seek(0)
            file.write(json.dumps(asdict(self._progress)).ljust(_LENGTH).encode())


@contextlib.contextmanager
def supervised(folder: str, processes: Processes, trial: Any = None) -> Iterator[SupervisedRun | None]:
    """Yields the supervised run in `folder`, and notes its end; None without a supervisor.

    Args:
        trial: of a search for hyper-parameters, or None.
    """
    supervision = Supervision.of(os.environ)
    run = None if supervision is None else SupervisedRun(supervision, folder, processes, trial is not None)
    try:
        yield run
    except BaseException as error:
        if run is not None:
            run.end(error)
        raise
    if run is not None:
        run.end(None)


def kind_of(error: BaseException) -> str:
    """Returns MEMORY or GPU if `error` or one of its causes is such a fault, else OTHER."""
    for each in with_causes(error):
        if ran_out_of_memory(each) or isinstance(each, MemoryError) or out_of_memory(each):
            return MEMORY
        if is_gpu_fault(each):
            return GPU
    return OTHER


def _unique(supervisor: str) -> str:
    """Returns the id, or one made of the parent process for torchrun's default id, which all runs have."""
    if supervisor != "none":
        return supervisor
    try:
        parent = psutil.Process(os.getppid())
        return f"{parent.pid}-{parent.create_time()}"
    except psutil.Error:
        return str(os.getppid())
