"""Collects the record of a run while it trains: at logs, saves and faults, never at a step."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import psutil

from ..devices.facts import for_a_report, gather_facts
from ..errors import MisconfigurationException
from ..guards.memory import measure
from ..version import __version__
from . import description, record
from .fallbacks import FallbackWatch
from .origin import origin_of
from .record import FAILED, FINISHED, RUNNING, STEP, STOPPED, Event, RunRecord, Session
from .redaction import readable, rules_of

_APART = 0.25  # seconds between two looks at clock and memory, however often is logged
_MARKS = 4000  # after which every other one is dropped, and those to come are twice as far apart
_RUNTIME = "_runtime"
_WARNINGS = 100  # that are kept of a session
_SAVED_APART = 5.0  # seconds between two savings of the record at checkpoints
_LASTING = ("begin", "resume", "warning", "fault", "stop")  # kinds of events that stay when their steps are made again


class Recorder:
    """Records the run that begins now.

    It reads the host's clock and counters of memory, and never waits for the device.

    Args:
        folder: the folder of the run's files.
        resumed_from: the checkpoint that the run is resumed from.
        batch: examples in an update of all processes.
    """

    def __init__(
        self, folder: str, args: Any, state: Any, model: Any, loader: Any, batch: int, resumed_from: str | None = None
    ) -> None:
        self.folder = folder
        self.state = state
        self._args, self._model, self._loader, self._batch = args, model, loader, batch
        self.classes = description.classes_of(model)
        self._begun = time.perf_counter()
        self._process = psutil.Process()
        self._apart, self._looked, self._saved = _APART, 0.0, -_SAVED_APART
        self._warnings = 0
        self._described = False
        self.ended = False
        earlier = _earlier(resumed_from, state.global_step) if resumed_from is not None else None
        self.record = earlier or RunRecord("", {})
        self.record.name = description.name_of(args, folder)
        self._rules = rules_of(args)
        spec = getattr(sys.modules["__main__"], "__spec__", None)  # of `python -m`
        argv = [*(["-m", spec.name] if spec else sys.argv[:1]), *sys.argv[1:]]
        dataset, config = getattr(loader, "dataset", None), getattr(model, "config", None)
        self.record.origin = origin_of(argv, os.curdir, dataset, config, self._rules)
        self.session = Session(state.global_step, self.record.seconds, time.time())
        self.record.sessions.append(self.session)
        self._set_outcome(RUNNING, "")
        if resumed_from is None:
            self.note("begin", state.global_step)
        else:
            self.note("resume", state.global_step, f"from {resumed_from}")
        self._fallbacks = FallbackWatch(args.device.type)
        self._fallbacks.begin()
        self._look()

    @property
    def steps(self) -> int:
        """Steps since the session began."""
        return self.state.global_step - self.session.first_step

    def log(self, logs: dict[str, Any]) -> None:
        """Records a log of the run."""
        # not after an evaluation, whose time would lie before the mark and its event behind it
        if not self.ended and "loss" in logs and time.perf_counter() - self._looked >= self._apart:
            self._look()
        if "loss" in logs:
            return
        for name, value in logs.items():
            if name.endswith(_RUNTIME) and name != "train_runtime" and record.is_number(value):
                self.note("evaluation", self.state.global_step, name.removesuffix(_RUNTIME), took=value)

    def note(self, kind: str, step: int, text: str = "", took: float = 0.0) -> None:
        """Adds an event at the present time; at most a hundred warnings, as a run may warn at each log."""
        if kind == "warning":
            self._warnings += 1
            if self._warnings > _WARNINGS:
                return
        self.record.events.append(Event(kind, step, self._now(), readable(text), took))

    def save_now_and_then(self) -> None:
        """Writes the record at a checkpoint, unless it was written a moment ago. Raises OSError."""
        if time.perf_counter() - self._saved >= _SAVED_APART:
            self.save()

    def save(self) -> None:
        """Writes the record so far. Raises OSError."""
        self.session.seconds = self._now() - self.session.offset
        self._update()
        os.makedirs(self.folder, exist_ok=True)  # that of a trial that has saved nothing
        record.write(self.record, self.folder)
        self._saved = time.perf_counter()

    def end(self, error: BaseException | None) -> None:
        """Ends the record after the last step, or when `error` has ended the run."""
        step = self.state.global_step
        self._look()
        self.session.seconds = self._now() - self.session.offset
        self.record.fallback = self._merged(self._fallbacks.end())
        if (more := self._warnings - _WARNINGS) > 0:
            self.record.events.append(Event("warning", step, self._now(), f"{more} more warnings are not listed."))
        self.ended = True
        if error is None:
            kind, event, text = FINISHED, "end", "" if step >= self.state.max_steps else "A callback ended it early."
        elif isinstance(error, KeyboardInterrupt):
            kind, event, text = STOPPED, "stop", "by SIGINT (Ctrl-C)"
        elif isinstance(error, SystemExit):
            text = "by SIGTERM" if error.code == 143 else f"with exit status {error.code}"
            kind, event = STOPPED, "stop"
        else:
            kind, event, text = FAILED, "fault", readable(f"{type(error).__name__}: {error}", 600)
        self._set_outcome(kind, text)
        self.note(event, step, text)

    def _set_outcome(self, kind: str, text: str) -> None:
        self.record.outcome = {
            "kind": kind,
            "text": readable(text),
            "step": self.state.global_step,
            "max_steps": self.state.max_steps,
        }

    def _now(self) -> float:
        """Returns the time on the training clock, which stands still when the run has ended."""
        seconds = self.session.seconds if self.ended else time.perf_counter() - self._begun
        return round(self.session.offset + seconds, 4)

    def _look(self) -> None:
        self._looked = time.perf_counter()
        memory = measure(self._args.device)
        resident = self._process.memory_info().rss
        marks = self.session.marks
        marks.append(
            [self.state.global_step, self._now(), float(self.state.total_flos), memory.live, memory.driver, resident]
        )
        if len(marks) >= _MARKS:
            del marks[1::2]
            self._apart *= 2

    def _update(self) -> None:
        """Updates the facts that are looked up when the record is written, some of them once."""
        state, now = self.state, self.record
        now.outcome |= {"step": state.global_step, "max_steps": state.max_steps}
        now.history = record.read_history(state.log_history)
        if state.best_metric is not None:
            now.best = {
                "metric": state.best_metric,
                "step": state.best_global_step,
                "name": self._args.metric_for_best_model,
                "checkpoint": state.best_model_checkpoint and os.path.basename(state.best_model_checkpoint),
            }
        if self._described:
            return
        self._described = True
        model, loader, self._model, self._loader = self._model, self._loader, None, None  # not to keep them from going
        now.device = self._args.decision.to_dict()
        now.model = description.model_of(model)
        now.data = description.data_of(self._args, loader, self._batch)
        now.arguments, now.changed = description.arguments_of(self._args, self._rules)
        facts = for_a_report(gather_facts(environ=dict(os.environ)))
        now.environment = {"mps_trainer": __version__, **facts.to_dict()}
        now.device["simulated"] = bool(now.environment.get("mps_simulated")) and now.device["type"] == "mps"
        recommended = measure(self._args.device).recommended
        if recommended is not None:
            now.device["memory"] = recommended

    def _merged(self, found: dict[str, Any]) -> dict[str, Any]:
        """Returns `found` with the operators of earlier sessions."""
        before = [o for o in self.record.fallback.get("operators", []) if isinstance(o, dict)]
        named = {operator["name"] for operator in found["operators"]}
        return {**found, "operators": [*found["operators"], *(o for o in before if o.get("name") not in named)]}


def _earlier(resumed_from: str, step: int) -> RunRecord | None:
    """Returns the record of the run up to `step`, from the folder of the checkpoint; None if there is none."""
    folder = os.path.dirname(os.path.abspath(resumed_from))
    try:
        found = record.read(folder)
    except (OSError, MisconfigurationException):
        return None
    if found.outcome.get("kind") == RUNNING:
        last = found.outcome.get("step", 0)
        text = f"The process ended without a word, some time after step {last}."
        found.events.append(Event("fault", last, found.seconds, text))
    for session in found.sessions:
        session.marks = [mark for mark in session.marks if (mark[STEP] or 0) <= step]
    found.events = [event for event in found.events if event.kind in _LASTING or event.step <= step]
    found.best, found.classification = {}, {}
    return found
