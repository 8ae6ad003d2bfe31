"""Decides whether a run that died is started again, and how. Pure: facts in, decisions out.

`doctor` and `--help` import this module before anything is installed, so its top imports the standard library alone.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VARIABLE = "MPS_TRAINER_RESTARTS"  # a Supervision as JSON, for the process that trains
PROGRESS, ERROR = "progress.json", "error.txt"  # the notes of the processes that train
ALIVE = "alive"  # a pipe beside the notes, open for writing as long as the supervisor lives
MEMORY, GPU, OTHER = "memory", "gpu", "other"  # errors of a run

# Someone asked for the end of the run with these.
REQUESTS = {signal.SIGINT, signal.SIGTERM, *(getattr(signal, name, signal.SIGTERM) for name in ("SIGHUP", "SIGQUIT"))}


@dataclass(frozen=True)
class Progress:
    """The last note of a process about its current call of `Trainer.train`.

    Attributes:
        folder: the folder of the run's checkpoints.
        call: the number of this call of train() among the calls of the process that train into `folder`, from 0.
        step: the optimizer steps that are done.
        examples: in a batch of one process.
        in_training: False once the call has returned.
        was_empty: True if the folder had no files when the call began.
    """

    folder: str
    call: int = 0
    step: int = 0
    examples: int = 1
    in_training: bool = True
    was_empty: bool = False


@dataclass(frozen=True)
class End:
    """The end of a process.

    Attributes:
        status: its exit status; negative for a signal that ended it. A script may exit with 137, too.
        error: MEMORY, GPU or OTHER for an error that a call of `train` raised, "" without one.
        progress: None if no call of `train` began.
        hung_for: seconds without progress after which it was ended; 0 if it ended by itself.
    """

    status: int
    error: str = ""
    progress: Progress | None = None
    hung_for: float = 0.0


@dataclass(frozen=True)
class Restart:
    """A start after a death.

    Attributes:
        number: from 1.
        cause: how the run died, as a clause without its subject.
        progress: of the process that died.
        examples: most examples in a batch of the run in `progress.folder` from here on; None: no change.
        time: in seconds since 1970.
        checkpoint: the newest of the process that died.
    """

    number: int
    cause: str
    progress: Progress | None = None
    examples: int | None = None
    time: float = 0.0
    checkpoint: str | None = None

    def __str__(self) -> str:
        if self.progress is None:
            return self.cause  # torchrun tells no more, and before training there is no step
        step = self.progress.step
        return f"{self.cause} {f'after step {step}' if step else 'before its first step'}"


@dataclass(frozen=True)
class Supervision:
    """Describes the supervisor of a process that trains.

    Attributes:
        id: the same for all processes of one supervisor.
        restarts: those so far, or the last of them.
        notes: the folder for notes to the supervisor; None if it reads none.
    """

    id: str
    restarts: tuple[Restart, ...] = ()
    notes: str | None = None

    def variables(self) -> dict[str, str]:
        import msgspec

        return {VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Supervision | None:
        """Returns what the environment says of `mps-trainer --restarts` or torchrun; None without them."""
        if VARIABLE in environ:
            import msgspec

            return msgspec.json.decode(environ[VARIABLE], type=cls)
        if "TORCHELASTIC_RUN_ID" not in environ:
            return None
        number = int(environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        cause = "ended in one of its processes, and torchrun started them again"
        return cls(environ["TORCHELASTIC_RUN_ID"], (Restart(number, cause, time=time.time()),) if number else ())

    def examples(self, folder: str) -> int | None:
        """Returns the most examples in a batch of the run in `folder`; None if there is no limit."""
        limits = [each.examples for each in self.restarts if each.progress and each.progress.folder == folder]
        return min((limit for limit in limits if limit is not None), default=None)


def decide(end: End, restarts: Sequence[Restart], most: int, now: float = 0.0) -> Restart | str:
    """Returns the restart after `end`, or the reason for none: "" where the run ended by itself.

    A run starts again after a signal, a GPU fault, or too little memory, if it hung, and if it ended in the middle of
    training without an error. It does not after an error of the script or status 0, or if it died twice in a row at
    the same step with as many examples at a time. Memory that runs out with one example is no progress either.
    """
    if end.status == 0 and not end.hung_for and _was_training(end):
        at = Restart(0, "ended with status 0 in the middle of training,", end.progress)
        return f"the run {at}. It is not started again, because status 0 means that the script chose to end."
    found = _cause(end)
    if found is None:
        return ""
    cause, is_memory = found
    half = -(-end.progress.examples // 2) if is_memory and end.progress and end.progress.examples > 1 else None
    restart = Restart(len(restarts) + 1, cause, end.progress, half, now)
    if restarts and not _is_progress(restarts[-1].progress, end.progress, is_memory and half is None):
        return f"the run {restart}, as the last time. It is not started again, because it makes no progress."
    if len(restarts) >= most:
        again = f"{most} restarts are used up" if most > 1 else "the one restart is used up"
        return f"the run {restart}, and {again}."
    return restart


def announcement(restart: Restart, most: int, seconds: float, checkpoint: str | None) -> str:
    """Returns the line about a restart that resumes from `checkpoint`, or begins like the first start without one."""
    way_on = f"from {checkpoint}" if checkpoint else "as the script begins, because it has no checkpoint to resume"
    smaller = ""
    if restart.examples is not None:
        number = f"{restart.examples} example{'s' if restart.examples != 1 else ''}"
        smaller = f" It trains on {number} at a time; an update has as many as before."
    return f"the run {restart}. Restart {restart.number} of {most} in {seconds:g} s: it starts {way_on}.{smaller}"


def _cause(end: End) -> tuple[str, bool] | None:
    """Returns how a run died and whether memory was the reason; None if it ended or the script failed."""
    if end.hung_for:
        return f"made no progress for {end.hung_for:g} s", False
    signum = max(0, -end.status)
    # a Trainer that saves and ends on a signal exits with 128 plus the signal's number
    if end.status == 0 or signum in REQUESTS or end.status - 128 in REQUESTS:
        return None
    if end.error == MEMORY:
        return "ran out of memory", True
    if end.error == GPU:
        return "died of a GPU fault", False
    if signum == getattr(signal, "SIGKILL", 9):
        return "was killed (SIGKILL, which a system short of memory sends)", True
    if signum:
        name = next((each.name for each in signal.Signals if each == signum), f"signal {signum}")
        return f"died of {name}", False
    if _was_training(end):
        return f"ended with status {end.status} and no error", False
    return None


def _was_training(end: End) -> bool:
    """Returns True if the process ended in the middle of `train`, by neither a return nor an error."""
    return end.progress is not None and end.progress.in_training and not end.error


def _is_progress(before: Progress | None, now: Progress | None, is_smallest: bool) -> bool:
    """Returns True if a process got to another step than the one before it, or trained on fewer examples at a time."""
    if before is None or now is None:
        return before is not now
    is_same = (before.folder, before.call, before.step) == (now.folder, now.call, now.step)
    return not is_same or (now.examples < before.examples and not is_smallest)
