"""Defines the record of a run, plain data, and reads and writes its file in the folder of the run."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import MisconfigurationException
from ..utils.bounded_file import read_bytes

NAME = "run_record.json"
PAGE = "report.html"
FORMAT = 1
GENERATOR = "mps_trainer report"  # the mark of a file that may be written over, in its first characters
_MARKED = re.compile(
    rf'{{"generator": "{GENERATOR}"|<!DOCTYPE html>.*<meta name="generator" content="{GENERATOR} ', re.S
)
# As in checkpoints.manifest, which loads torch: a page is made without it.
_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(0|[1-9][0-9]*)")
LARGEST = 256 << 20  # bytes of a file that is read, as for those of a checkpoint

KEPT_LOGS = 5000  # of the loss; a page has fewer pixels, and the file is written at each checkpoint

# Columns of a mark. Seconds are those of the training clock, which stands still between two sessions; bytes are None
# where the device does not tell.
STEP, SECONDS, OPERATIONS, LIVE, HELD, RESIDENT = range(6)

FINISHED, STOPPED, FAILED, RUNNING, UNKNOWN = "finished", "stopped", "failed", "running", "unknown"


@dataclass
class Session:
    """One process's part of a run: from its first step, or from where it was resumed, to where it ended."""

    first_step: int  # steps that were done when it began
    offset: float  # seconds on the training clock when it began
    begun: float  # seconds since 1970
    seconds: float = 0.0
    marks: list[list[Any]] = field(default_factory=list)  # of clock and memory, see the columns above


@dataclass
class Event:
    """Something that happened at a step: begin, resume, checkpoint, evaluation, warning, fault, stop, end."""

    kind: str
    step: int
    seconds: float
    text: str = ""
    took: float = 0.0  # seconds, of an evaluation


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
        values = {each.name: getattr(self, each.name) for each in _SAVED}
        values["history"] = _fewer_logs(self.history)
        values["sessions"] = [vars(session) for session in self.sessions]
        values["events"] = [vars(event) for event in self.events]
        return {"generator": GENERATOR, "format": FORMAT, **values}

    @classmethod
    def from_dict(cls, data: Any) -> RunRecord:
        """Reads the result of `to_dict()`. Raises ValueError for other data, with a clause that says what is wrong."""
        if not isinstance(data, dict):
            raise ValueError("it holds no JSON object")
        if data.get("format") != FORMAT:
            raise ValueError(f"its format is {data.get('format')!r}, and this release reads {FORMAT}")
        values: dict[str, Any] = {}
        for each in _SAVED:
            if each.name not in data:
                continue
            kind = {"name": str, "history": list, "sessions": list, "events": list}.get(each.name, dict)
            if not isinstance(data[each.name], kind):
                raise ValueError(f"its {each.name} is {type(data[each.name]).__name__} and not {kind.__name__}")
            values[each.name] = data[each.name] if kind is not dict else _known_values(each.name, data[each.name])
        if "name" not in values or "outcome" not in values:
            raise ValueError("it names no run and no outcome")
        changed = values.get("changed", {}).items()
        values["changed"] = {name: both for name, both in changed if isinstance(both, list) and len(both) == 2}
        values["history"] = read_history(values.get("history", []))
        try:
            values["sessions"] = [_session(entry) for entry in values.get("sessions", [])]
            values["events"] = [_checked(Event(**entry), _OF_EVENT) for entry in values.get("events", [])]
        except (TypeError, ValueError) as error:
            raise ValueError(f"its sessions or events are not as they were written ({error})") from error
        return cls(**values)


_SAVED = [each for each in fields(RunRecord) if each.name != "source"]
_NUMBER = (int, float)
# The values that pages show, by their part of the record. One of another kind counts as unknown: the file may be of a
# later release, or edited by hand.
_KINDS: dict[str, dict[str, Any]] = {
    "outcome": {"kind": str, "text": str, "step": _NUMBER, "max_steps": _NUMBER},
    "best": {"metric": _NUMBER, "step": _NUMBER, "name": str, "checkpoint": str},
    "device": {"device": str, "type": str, "reason": str, "rejected": list, "notes": list, "world_size": _NUMBER},
    "model": {"class": str, "parameters": _NUMBER, "trained": _NUMBER, "operations_per_token": _NUMBER},
    "data": {
        **dict.fromkeys(("batch", "batch_per_device", "accumulation", "processes", "examples"), _NUMBER),
        **{"sampling": str, "buckets": list, "padded": list, "lengths": dict},
    },
    "origin": dict.fromkeys(("command", "commit", "dataset", "base_model"), str),
    "classification": {"classes": list, "confusion": list, "mistakes": list, "examples": _NUMBER, "wrong": _NUMBER},
    "fallback": {"text": str, "operators": list, "shapes": _NUMBER},
    "environment": {"packages": dict, "environment": dict, "memory_bytes": _NUMBER, "chip": str, "model": str},
}
# The names that each row of a list must have
_ROWS = {
    "rejected": ("name",),
    "padded": ("length", "batches", "real", "tokens"),
    "operators": ("name",),
    "mistakes": ("label", "predicted", "confidence"),
}
_OF_SESSION = dict.fromkeys(("first_step", "offset", "begun", "seconds"), _NUMBER) | {"marks": list}
_OF_EVENT = {"kind": str, "step": _NUMBER, "seconds": _NUMBER, "text": str, "took": _NUMBER}


def _is(value: Any, kind: Any) -> bool:
    return is_finite(value) if kind is _NUMBER else isinstance(value, kind)


def _known_values(part: str, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a part of a record without those of another kind than pages show."""
    kinds = _KINDS.get(part, {})
    kept = {name: value for name, value in values.items() if name not in kinds or _is(value, kinds[name])}
    for name in kept.keys() & _ROWS.keys():
        rows = [row for row in kept[name] if isinstance(row, dict) and all(key in row for key in _ROWS[name])]
        kept[name] = [row for row in rows if name != "padded" or all(map(is_finite, row.values()))]
    return kept


def _checked(made: Any, kinds: dict[str, Any]) -> Any:
    """Returns a session or an event; raises TypeError for values of another kind."""
    for name, kind in kinds.items():
        if not _is(getattr(made, name), kind):
            raise TypeError(f"{name} is {str(getattr(made, name))[:40]}")
    return made


def _session(entry: Any) -> Session:
    session: Session = _checked(Session(**entry), _OF_SESSION)
    for mark in session.marks:
        if not isinstance(mark, list) or len(mark) <= RESIDENT or None in mark[: SECONDS + 1]:
            raise TypeError("a mark has no step or time")
        if not all(value is None or is_finite(value) for value in mark):
            raise TypeError("a mark has something other than numbers")
    return session


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Returns True for a number that a chart has a place for."""
    return is_number(value) and abs(value) < 1e300


def read_history(entries: list[Any]) -> list[dict[str, Any]]:
    """Returns the entries of a `log_history` that have a step, with their values that are numbers."""
    numbers = [{k: v for k, v in entry.items() if is_number(v)} for entry in entries if isinstance(entry, dict)]
    return [entry for entry in numbers if is_finite(entry.get("step"))]


def _fewer_logs(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns `history` with at most about KEPT_LOGS logs of the loss, evenly spread; the last and all others stay."""
    losses = [number for number, entry in enumerate(history) if "loss" in entry]
    if len(losses) <= KEPT_LOGS:
        return history
    kept = set(losses[:: -(-len(losses) // KEPT_LOGS)]) | {losses[-1]}
    return [entry for number, entry in enumerate(history) if "loss" not in entry or number in kept]


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
            f"{path} was not written by mps_trainer, and is kept. Move it, and `mps-trainer report "
            f"{os.path.dirname(path) or '.'}` writes the report."
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

    Without a record's own file it is made from the newest `trainer_state.json`.

    Raises:
        MisconfigurationException: if there is no run in it, or its files are damaged.
    """
    if not os.path.isdir(folder):
        what = "is a file" if os.path.exists(folder) else "does not exist"
        raise MisconfigurationException(f"{folder} {what}. Name the output_dir of a training run.")
    if os.path.isfile(os.path.join(folder, NAME)):
        return read(folder)
    checkpoints = [name for name in os.listdir(folder) if _CHECKPOINT.fullmatch(name)]
    checkpoints.sort(key=lambda name: int(name.rpartition("-")[2]), reverse=True)
    for name in ("", *checkpoints):  # the folder's own state was written at the end
        if os.path.isfile(path := os.path.join(folder, name, _STATE)):
            return _from_state(path)
    raise MisconfigurationException(
        f"There is no training run in {folder}: it has no {NAME}, no {_STATE} and no checkpoint. Name the "
        "output_dir of a run."
    )


def read(folder: str) -> RunRecord:
    """Reads the record in `folder`.

    Raises:
        MisconfigurationException: if it is damaged.
        FileNotFoundError: if there is none.
    """
    path = os.path.join(folder, NAME)
    data = load_json(path)
    try:
        return RunRecord.from_dict(data)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _from_state(path: str) -> RunRecord:
    """Returns a record of a `trainer_state.json`, of this Trainer or of transformers': curves, and no times."""
    state = load_json(path)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise _damaged(path, "it has no log_history")
    folder = os.path.dirname(os.path.abspath(path))
    if _CHECKPOINT.fullmatch(os.path.basename(folder)):
        folder = os.path.dirname(folder)
    history = read_history(state["log_history"])
    ended = any("train_runtime" in entry for entry in history)
    numbers = {name: value for name, value in state.items() if is_number(value)}
    best = {"metric": numbers.get("best_metric"), "step": numbers.get("best_global_step")}
    return RunRecord(
        name=os.path.basename(folder) or folder,
        outcome={
            "kind": FINISHED if ended else UNKNOWN,
            "text": "",
            "step": numbers.get("global_step", 0),
            "max_steps": numbers.get("max_steps", 0),
        },
        history=history,
        best=best if "best_metric" in numbers else {},
        data={"batch_per_device": numbers["train_batch_size"]} if "train_batch_size" in numbers else {},
        source=os.path.relpath(path, folder),
    )


def load_json(path: str) -> Any:
    """Reads a file of JSON. Raises MisconfigurationException for any other, FileNotFoundError if there is none."""
    try:
        return json.loads(read_bytes(path, LARGEST).decode())
    except FileNotFoundError:
        raise
    except RecursionError as error:
        raise _damaged(path, "it is nested too deeply") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    except (OSError, ValueError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or str(error)) from error


def _damaged(path: str, why: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"{path} cannot be read: {why}. Remove it, and the report is made from the checkpoints beside it."
    )
