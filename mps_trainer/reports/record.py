"""Keeps the facts of a run as plain data, and in a file in the run's folder."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass, field
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
LARGEST = 256 << 20  # bytes of a file that is read, as for those of a checkpoint

KEPT_LOGS = 5000  # of the loss; a page has fewer pixels, and the file is written at each checkpoint
KEPT_EVENTS = 1000

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
        values = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "source"
        }
        values["history"] = thinned(self.history)
        values["sessions"] = [vars(session) for session in self.sessions]
        values["events"] = [vars(event) for event in _fewer_events(self.events)]
        return {"generator": GENERATOR, "format": FORMAT, **values}

    @classmethod
    def from_dict(cls, data: Any, source: str = NAME) -> RunRecord:
        """Reads the result of `to_dict()`. Raises ValueError for other data, with a clause that says what is wrong."""
        if not isinstance(data, dict):
            raise ValueError("it holds no JSON object")
        if data.get("format") != FORMAT:
            raise ValueError(f"its format is {data.get('format')!r}, and this release reads {FORMAT}")
        values: dict[str, Any] = {}
        for each in dataclasses.fields(cls):
            if each.name == "source" or each.name not in data:
                continue
            kind = {"name": str, "history": list, "sessions": list, "events": list}.get(each.name, dict)
            if not isinstance(data[each.name], kind):
                raise ValueError(f"its {each.name} is {type(data[each.name]).__name__} and not {kind.__name__}")
            values[each.name] = data[each.name] if kind is not dict else _of_right_kind(each.name, data[each.name])
        if "name" not in values or "outcome" not in values:
            raise ValueError("it names no run and no outcome")
        values["history"] = read_history(values.get("history", []))
        try:
            values["sessions"] = [_session(entry) for entry in values.get("sessions", [])]
            values["events"] = [_event(entry) for entry in values.get("events", [])]
        except (TypeError, ValueError) as error:
            raise ValueError(f"its sessions or events are not as they were written ({error})") from error
        return cls(**values, source=source)


_NUMBER = (int, float)
_YEAR_5000 = 95_617_584_000  # in seconds since 1970: a calendar ends
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
_ROWS = {"rejected": ("name",), "padded": ("length", "batches", "real", "tokens"), "operators": ("name",)}
_ROWS["mistakes"] = ("label", "predicted", "confidence")


def _of_right_kind(part: str, values: dict[str, Any]) -> dict[str, Any]:
    kinds = _KINDS.get(part, {})
    kept = {
        name: v
        for name, v in values.items()
        if name not in kinds or (is_finite(v) if kinds[name] is _NUMBER else isinstance(v, kinds[name]))
    }
    for name in kept.keys() & _ROWS.keys():
        rows = [row for row in kept[name] if isinstance(row, dict) and all(key in row for key in _ROWS[name])]
        kept[name] = [row for row in rows if name != "padded" or all(map(is_finite, row.values()))]
    return kept


def _session(entry: Any) -> Session:
    session = Session(**entry)
    numbers = (session.first_step, session.offset, session.begun, session.seconds)
    if not all(map(is_finite, numbers)) or not isinstance(session.marks, list):
        raise TypeError("a session has no step or time")
    if not 0 <= session.begun < _YEAR_5000:
        raise ValueError("a session began at no date")
    for mark in session.marks:
        if not isinstance(mark, list) or len(mark) <= RESIDENT or None in mark[: SECONDS + 1]:
            raise TypeError("a mark has no step or time")
        if not all(value is None or is_finite(value) for value in mark):
            raise TypeError("a mark has something other than numbers")
    return session


def _event(entry: Any) -> Event:
    event = Event(**entry)
    if not all(map(is_finite, (event.step, event.seconds, event.took))):
        raise TypeError("an event has no step or time")
    if not isinstance(event.kind, str) or not isinstance(event.text, str):
        raise TypeError("the kind or the text of an event is no text")
    return event


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Returns True for a number that a chart has a place for."""
    return is_number(value) and abs(value) < 1e300


def read_history(entries: Any) -> list[dict[str, Any]]:
    """Returns the entries of a `log_history` that have a step, with their values that are numbers."""
    if not isinstance(entries, list):
        return []
    numbers = [{k: v for k, v in entry.items() if is_number(v)} for entry in entries if isinstance(entry, dict)]
    return [entry for entry in numbers if is_finite(entry.get("step"))]


def thinned(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns `history` with at most about KEPT_LOGS logs of the loss, evenly spread; the last and all others stay."""
    losses = [number for number, entry in enumerate(history) if "loss" in entry]
    if len(losses) <= KEPT_LOGS:
        return history
    kept = set(losses[:: -(-len(losses) // KEPT_LOGS)]) | {losses[-1]}
    return [entry for number, entry in enumerate(history) if "loss" not in entry or number in kept]


def _fewer_events(events: list[Event]) -> list[Event]:
    """Returns the events without the oldest checkpoints and evaluations beyond KEPT_EVENTS."""
    many = [event for event in events if event.kind in ("checkpoint", "evaluation")]
    gone = set(map(id, many[: max(len(many) - KEPT_EVENTS, 0)]))
    return [event for event in events if id(event) not in gone]


def write(record: RunRecord, folder: str) -> None:
    """Writes the record into `folder`: whole, or not at all. Raises OSError."""
    text = json.dumps(record.to_dict(), default=str)
    replace(os.path.join(folder, NAME), text)


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


def is_recorded(folder: str) -> bool:
    """Returns True if there is a record in `folder`."""
    return os.path.isfile(os.path.join(folder, NAME))


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
        raise damaged(path, str(error)) from error


def load_json(path: str) -> Any:
    """Reads a file of JSON. Raises MisconfigurationException for any other, FileNotFoundError if there is none."""
    try:
        content = read_bytes(path, LARGEST)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise damaged(path, getattr(error, "strerror", None) or str(error)) from error
    try:
        return json.loads(content.decode())
    except ValueError as error:
        raise damaged(path, f"it is not JSON ({error})") from error
    except RecursionError as error:
        raise damaged(path, "it is nested too deeply") from error


def damaged(path: str, why: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"{path} cannot be read: {why}. Remove it, and the report is made from the checkpoints beside it."
    )
