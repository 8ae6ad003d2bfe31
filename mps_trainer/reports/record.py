"""Defines the record of a run, plain data, and reads and writes its file in the folder of the run."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from ..checkpoints.folders import find_checkpoints, step_of
from ..checkpoints.manifest import NAME as MANIFEST
from ..checkpoints.manifest import STATE
from ..errors import MisconfigurationException
from ..utils.bounded_file import read_bytes

NAME = "run_record.json"
PAGE = "report.html"
FORMAT = 1
GENERATOR = "mps_trainer report"  # the mark of a file that may be written over, in its first characters
_MARKED = re.compile(
    rf'{{"generator": "{GENERATOR}"|<!DOCTYPE html>.*<meta name="generator" content="{GENERATOR} ', re.S
)
LARGEST = 256 << 20  # bytes of a file that is read, as for those of a checkpoint

Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]  # charts draw no larger values
# Clock and memory at a log. Seconds are those of the training clock, which stands still between two sessions; bytes
# are None where the device does not tell.
Mark = tuple[int, Finite, Finite, int | None, int | None, int | None]
STEP, SECONDS, OPERATIONS, LIVE, HELD, RESIDENT = range(6)  # its columns

FINISHED, STOPPED, FAILED, RUNNING, UNKNOWN = "finished", "stopped", "failed", "running", "unknown"


@dataclass
class Session:
    """One process's part of a run: from its first step, or from where it was resumed, to where it ended."""

    first_step: int  # steps that were done when it began
    offset: Finite  # seconds on the training clock when it began
    begun: Finite  # seconds since 1970
    seconds: Finite = 0.0
    marks: list[Any] = field(default_factory=list)  # each is a Mark


@dataclass
class Event:
    """Something that happened at a step.

    Its kind is begin, restart, resume, checkpoint, evaluation, off, padding, waiting, warning, slow, steady, fault,
    stop or end.
    """

    kind: str
    step: int
    seconds: Finite
    text: str = ""
    took: Finite = 0.0  # seconds, of an evaluation or of slow steps so far


@dataclass
class RunRecord:
    """All facts that a page shows of a run. `{}` and `[]` stand for unknown ones."""

    name: str
    outcome: dict[str, Any]  # `kind` (one of the words above), `text`, `step`, `max_steps`
    history: list[dict[str, Any]] = field(default_factory=list)  # the Trainer's `log_history`
    sessions: list[Session] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    classification: dict[str, Any] = field(default_factory=dict)
    fallback: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] = field(default_factory=dict)  # argument -> [its value, the default]
    environment: dict[str, Any] = field(default_factory=dict)
    source: str = NAME  # the file that it was read from, for the page

    @property
    def seconds(self) -> float:
        """Seconds of all sessions on the training clock."""
        return self.sessions[-1].offset + self.sessions[-1].seconds if self.sessions else 0.0

    def to_dict(self) -> dict[str, Any]:
        sessions, events = ([vars(part) for part in parts] for parts in (self.sessions, self.events))
        return {"generator": GENERATOR, "format": FORMAT, **vars(self), "sessions": sessions, "events": events}

    @classmethod
    def from_dict(cls, data: Any) -> RunRecord:
        """Reads the result of `to_dict()`, which may be of a later release.

        Raises:
            ValueError, msgspec.ValidationError: for other data. The message says what is wrong.
        """
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise ValueError(f"its format is {data.get('format')!r}, and this release reads {FORMAT}")
        record = msgspec.convert(data, cls)
        for session in record.sessions:
            session.marks = msgspec.convert(session.marks, list[Mark])
        record.history = read_history(record.history)
        return record


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Returns True for a number that a chart has a place for."""
    return is_number(value) and abs(value) < 1e150  # pygal squares it


def read_history(entries: list[Any]) -> list[dict[str, Any]]:
    """Returns the entries of a `log_history` that have a step, with their values that are numbers."""
    numbers = [{k: v for k, v in entry.items() if is_number(v)} for entry in entries if isinstance(entry, dict)]
    return [entry for entry in numbers if is_finite(entry.get("step"))]


# Files


def write(record: RunRecord, folder: str) -> None:
    """Writes the record into `folder`: whole, or not at all. Raises OSError."""
    replace(os.path.join(folder, NAME), json.dumps(record.to_dict(), default=str))


def replace(path: str, text: str) -> None:
    """Writes `text` to the file at `path`, which has the old one until the new one is whole.

    Raises:
        MisconfigurationException: if there is a file that this package did not write.
        OSError: if it cannot be written.
    """
    if is_foreign(path):
        raise MisconfigurationException(
            f"{path} was not written by mps_trainer, and is kept. Move it, and `mps-trainer report` writes "
            "the report, or name another file with --output."
        )
    unfinished = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.tmp")
    try:
        with open(unfinished, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(unfinished, path)
    except OSError:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise


def is_foreign(path: str) -> bool:
    """Returns True if there is something at `path` that is neither a record nor a page of this package."""
    if not os.path.lexists(path):
        return False
    try:
        if not os.path.isfile(path):
            return True
        with open(path, encoding="utf-8") as file:
            return _MARKED.match(file.read(1000)) is None
    except (OSError, UnicodeDecodeError):
        return True


def record_of(folder: str) -> RunRecord:
    """Returns the record of the run in `folder`, an output folder or a checkpoint.

    It is made from a `trainer_state.json` if there is no other record, or if a run has gone on there since.

    Raises:
        MisconfigurationException: if there is no run in it, or its files are damaged.
    """
    if not os.path.isdir(folder):
        what = "is a file" if os.path.exists(folder) else "does not exist"
        raise MisconfigurationException(f"{folder} {what}. Name the output_dir of a training run.")
    inside = sorted(os.listdir(folder))
    states = [os.path.join(checkpoint, STATE) for checkpoint in reversed(find_checkpoints(folder))]
    newest = list(filter(os.path.isfile, states))[:1]
    known: tuple[RunRecord, str] | None = None
    for path in filter(os.path.isfile, (os.path.join(folder, NAME), os.path.join(folder, STATE), *newest)):
        try:
            record = read(path)
        except MisconfigurationException:
            if known is None:
                raise
            continue  # only a later file is damaged
        if known is None or _has_gone_on(*known, record, path):
            known = record, path
    if known is not None:
        return known[0]
    runs = [path for name in inside if os.path.isfile(os.path.join(path := os.path.join(folder, name), NAME))]
    named = f"the output_dir of a run, such as {runs[0]}." if runs else "the output_dir of a run."
    raise MisconfigurationException(
        f"There is no training run in {folder}: it has no {NAME}, no {STATE} and no checkpoint. Name {named}"
    )


def _has_gone_on(record: RunRecord, path: str, later: RunRecord, later_path: str) -> bool:
    """Returns True if a run has gone on from `record` up to `later`, which is not left of a longer run before."""
    begun, reached = record.outcome.get("step", 0), later.outcome.get("step", 0)
    if not (is_number(begun) and is_number(reached) and reached > begun):
        return False
    # a run that was killed may have saved a checkpoint after its record; transformers' have no manifest
    if record.outcome.get("kind") == RUNNING and os.path.isfile(os.path.join(os.path.dirname(later_path), MANIFEST)):
        return False
    return os.path.getmtime(later_path) > os.path.getmtime(path)


def read(path: str) -> RunRecord:
    """Reads a record, or makes one from a `trainer_state.json`.

    Raises:
        MisconfigurationException: if it is damaged, or there is none.
    """
    try:
        data = json.loads(read_bytes(path, LARGEST))
        return RunRecord.from_dict(data) if os.path.basename(path) == NAME else _from_state(data, path)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise MisconfigurationException(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}. Remove it, and the report is made "
            "from the checkpoints beside it."
        ) from error


def _from_state(state: Any, path: str) -> RunRecord:
    """Returns a record of a `trainer_state.json`, of this Trainer or of transformers': curves, and no times."""
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise ValueError("it has no log_history")
    folder = os.path.dirname(os.path.abspath(path))
    if step_of(folder) >= 0:
        folder = os.path.dirname(folder)
    has_ended = any(isinstance(entry, dict) and "train_runtime" in entry for entry in state["log_history"])
    batch = state.get("train_batch_size")
    return RunRecord(
        name=os.path.basename(folder) or folder,
        outcome={
            "kind": FINISHED if has_ended else UNKNOWN,
            "step": state.get("global_step"),
            "max_steps": state.get("max_steps"),
        },
        history=read_history(state["log_history"]),
        best={"metric": state.get("best_metric"), "step": state.get("best_global_step")},
        data={} if batch is None else {"batch_per_device": batch},
        source=os.path.relpath(path, folder),
    )
