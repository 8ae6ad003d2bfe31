"""Collects the record of a run while it trains: at logs, saves and faults, never at a step."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psutil

from ..devices.facts import for_a_report, gather_facts
from ..devices.probes import FALLBACK, switched_on
from ..errors import MisconfigurationException
from ..guards.memory import measure
from ..version import __version__
from . import record, run_facts
from .formatting import date
from .record import FAILED, FINISHED, RUNNING, STEP, STOPPED, Event, RunRecord, Session
from .redaction import readable, rules_of

if TYPE_CHECKING:
    from ..launching.restarts import Restart

_APART = 0.25  # seconds between two looks at clock and memory, however often is logged
_MARKS = 4000  # after which every other one is dropped, and those to come are twice as far apart
_RUNTIME = "_runtime"
_WARNINGS = 100  # a session keeps no more
_SAVED_APART = 5.0  # seconds between two savings of the record at checkpoints
# Kinds of events that stay when their steps are made again
_LASTING = ("begin", "restart", "resume", "warning", "fault", "stop")


class Recorder:
    """Records the run that begins now.

    It reads the host's clock and counters of memory, and never waits for the device.

    Args:
        batch: examples in an update of all processes.
    """

    def __init__(
        self,
        folder: str,
        args: Any,
        state: Any,
        model: Any,
        loader: Any,
        batch: int,
        resumed_from: str | None = None,
        restarts: Sequence[Restart] = (),
    ) -> None:
        self.folder, self.state, self.ended = folder, state, False
        self._args, self._model, self._loader, self._batch = args, model, loader, batch
        names = getattr(getattr(model, "config", None), "id2label", None)
        self.classes: dict[Any, str] = dict(names) if isinstance(names, dict) else {}  # a classifier has them
        self._begun = time.perf_counter()
        self._process = psutil.Process()
        self._apart, self._looked, self._saved = _APART, 0.0, -_SAVED_APART
        self._warnings = 0
        earlier = _earlier(resumed_from, state.global_step) if resumed_from is not None else None
        self.record = earlier or RunRecord("", {})
        self.record.name = readable(args.run_name or "") or os.path.basename(folder) or folder
        self._rules = rules_of(args)
        self.record.origin = run_facts.origin_of(getattr(loader, "dataset", None), model, self._rules)
        self.session = Session(state.global_step, self.record.seconds, time.time())
        self.record.sessions.append(self.session)
        self._set_outcome(RUNNING, "")
        noted = {event.text for event in self.record.events}
        for restart in restarts:
            text = readable(f"{date(restart.time)} ({restart.number}): the run {restart}")
            if text not in noted:
                self.note("restart", restart.progress.step if restart.progress else 0, text)
        if resumed_from is None:
            self.note("begin", state.global_step)
        else:
            self.note("resume", state.global_step, f"from {resumed_from}")
        self._fallbacks = FallbackWatch() if args.device.type == "mps" else None
        self._look()

    def log(self, logs: dict[str, Any]) -> None:
        """Records a log of the run."""
        if "loss" in logs:
            # a mark after an evaluation would lie between its time and its event
            if not self.ended and time.perf_counter() - self._looked >= self._apart:
                self._look()
            return
        for name, value in logs.items():
            if name.endswith(_RUNTIME) and name != "train_runtime" and record.is_number(value):
                self.note("evaluation", self.state.global_step, name.removesuffix(_RUNTIME), took=value)

    def note(self, kind: str, step: int, text: str = "", took: float = 0.0) -> None:
        """Adds an event at the present time; at most a hundred warnings, as a run may warn at each log.

        At a checkpoint it also writes the record, unless it was written a moment ago. Raises OSError.
        """
        self._warnings += kind == "warning"
        if kind != "warning" or self._warnings <= _WARNINGS:
            self.record.events.append(Event(kind, step, self._now(), readable(text), took))
        if kind == "checkpoint" and time.perf_counter() - self._saved >= _SAVED_APART:
            self.save()

    def save(self) -> None:
        """Writes the record so far. Raises OSError."""
        self.session.seconds = self._now() - self.session.offset
        self._update()
        os.makedirs(self.folder, exist_ok=True)  # a trial that has saved nothing has none
        record.write(self.record, self.folder)
        self._saved = time.perf_counter()

    def end(self, error: BaseException | None) -> None:
        """Ends the record after the last step, or when `error` has ended the run."""
        step = self.state.global_step
        self._look()
        self.session.seconds = self._now() - self.session.offset
        if self._fallbacks is not None:
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
        steps = {"step": self.state.global_step, "max_steps": self.state.max_steps}
        self.record.outcome = {"kind": kind, "text": readable(text), **steps}

    def _now(self) -> float:
        """Returns the time on the training clock, which stands still when the run has ended."""
        seconds = self.session.seconds if self.ended else time.perf_counter() - self._begun
        return round(self.session.offset + seconds, 4)

    def _look(self) -> None:
        """Adds a mark: clock and memory."""
        self._looked = time.perf_counter()
        memory, state, marks = measure(self._args.device), self.state, self.session.marks
        resident = self._process.memory_info().rss
        marks.append((state.global_step, self._now(), float(state.total_flos), memory.live, memory.driver, resident))
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
        if self._model is None:
            return
        model, loader, self._model, self._loader = self._model, self._loader, None, None  # memory is freed
        now.device = self._args.decision.to_dict()
        now.model = run_facts.model_of(model, self._args)
        now.data = run_facts.data_of(self._args, loader, self._batch)
        now.arguments, now.changed = run_facts.arguments_of(self._args, self._rules)
        facts = for_a_report(gather_facts(environ=dict(os.environ)))
        now.environment = {"mps_trainer": __version__, **facts.to_dict()}
        now.device["simulated"] = bool(now.environment.get("mps_simulated")) and now.device["type"] == "mps"

    def _merged(self, found: dict[str, Any]) -> dict[str, Any]:
        """Returns `found` with the operators of earlier sessions."""
        named = {operator["name"] for operator in found["operators"]}
        before = [operator for operator in self.record.fallback.get("operators", []) if operator["name"] not in named]
        return {**found, "operators": [*found["operators"], *before]}


def _earlier(resumed_from: str, step: int) -> RunRecord | None:
    """Returns the record of the run up to `step`, from the folder of the checkpoint; None if there is none."""
    folder = os.path.dirname(os.path.abspath(resumed_from))
    try:
        found = record.read(os.path.join(folder, record.NAME))
    except MisconfigurationException:
        return None
    if found.outcome.get("kind") == RUNNING:
        last = found.outcome.get("step", 0)
        text = f"The process ended without a word, some time after step {last}."
        found.events.append(Event("fault", last, found.seconds, text))
    for session in found.sessions:
        session.marks = [mark for mark in session.marks if mark[STEP] <= step]
    found.events = [event for event in found.events if event.kind in _LASTING or event.step <= step]
    found.best, found.classification = {}, {}
    return found


_SIMULATOR = "mps_trainer.simulator.session"
_WARNING = re.compile(r"The operator '([^']+)' is not currently supported on the MPS backend")


class FallbackWatch:
    """Notes which operators fall back to the CPU on mps, up to `end`, as far as that is known without a look at steps.

    The simulated device counts. torch on a Mac warns, through Python's warnings, of the first operator that falls
    back in a process and of no other (TORCH_WARN_ONCE in aten/src/ATen/mps/MPSFallback.mm), so a name is certain there
    and a list is not.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._simulated: Any = getattr(sys.modules.get(_SIMULATOR), "_current", None)
        if self._simulated is not None:
            self._before = self._simulated.counters()["operators"]
        else:
            self._shown: Any = warnings.showwarning
            warnings.showwarning = self._show

    def end(self) -> dict[str, Any]:
        """Returns `text`, and `operators` with name, calls and shapes (None: not counted)."""
        if self._simulated is not None:
            return self._counted()
        if warnings.showwarning == self._show:  # if not, another was put in between, which calls this one
            warnings.showwarning = self._shown
        if self._names:
            text = "torch names only the first operator of a process that falls back, so there may be more"
        elif switched_on(os.environ.get(FALLBACK)):
            text = (
                "Not known: torch warned of none during this run, but it warns once in a process, and of the first "
                "operator only"
            )
        else:
            text = (
                f"torch warned of none. {FALLBACK} is off, so that an operator without a kernel for mps is an error, "
                "except for the few that always go to the CPU"
            )
        operators = [{"name": name, "calls": None, "shapes": None} for name in self._names]
        return {"text": f"{text}. `mps-trainer check SCRIPT` lists them.", "operators": operators}

    def _show(self, message: Any, category: Any, *details: Any, **more: Any) -> None:
        found = _WARNING.match(str(message))
        if found is not None and found[1] not in self._names:
            self._names.append(found[1])
        self._shown(message, category, *details, **more)

    def _counted(self) -> dict[str, Any]:
        operators, shapes = [], 0
        for name, (calls, kinds, fell_back) in self._simulated.counters()["operators"].items():
            before = self._before.get(name, (0, 0, False))
            shapes += kinds - before[1]
            if fell_back and calls > before[0]:
                operators.append({"name": name, "calls": calls - before[0], "shapes": kinds - before[1]})
        operators.sort(key=lambda operator: -operator["calls"])
        text = f"{'' if operators else 'None. '}The simulated device counts each call."
        return {"text": text, "operators": operators, "shapes": shapes}
