"""Records a run while it trains, at logs, saves and faults and never at a step, and writes its report."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers.trainer_callback import TrainerState

from ..devices.facts import for_a_report, gather_facts
from ..errors import MisconfigurationException
from ..guards.memory import measure
from ..utils.text import sentence
from ..version import __version__
from . import fallbacks, record, run_facts
from .classification import classification_of, texts_of
from .formatting import date
from .record import FAILED, FINISHED, PAGE, RUNNING, STEP, STOPPED, Event, RunRecord, Session
from .redaction import error_text, readable, rules_of

logger = logging.getLogger(__name__)

_APART = 0.25  # seconds between two looks at clock and memory, however often is logged
_MARKS = 4000  # after which every other one is dropped, and those to come are twice as far apart
_RUNTIME = "_runtime"
_WARNINGS = 100  # a session keeps no more
_SAVED_APART = 5.0  # seconds between two savings of the record at checkpoints
_RELOAD = 15  # seconds between two pages of a run that goes on, and after which an open one loads itself again
_COST = 100  # a page is written at most in a hundredth of the time
_MOST_TRIALS = 40  # one page compares the last ones of a search
# Kinds of events that stay when their steps are made again
_LASTING = ("begin", "restart", "resume", "warning", "fault", "stop")


def begin_report(folder: str, args: Any, state: TrainerState, model: Any, **run: Any) -> Recorder | None:
    """Returns the recorder of the run that begins now; None if no report is wanted, or in another process.

    Args:
        run: the further arguments of `Recorder`.
    """
    try:
        wanted = args.writes_report and state.is_world_process_zero
        return Recorder(folder, args, state, model, **run) if wanted else None
    except Exception as error:
        _warn(args.output_dir, error)
        return None


def _warn(folder: str, error: Exception) -> None:
    logger.warning("%s has no %s of this run: %s", folder, PAGE, sentence(error))


def _never_in_the_way(method: Callable[..., None]) -> Callable[..., None]:
    """Makes an error in a report one warning, which never ends a run, and the end of the report."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: Any, **kwargs: Any) -> None:
        if self.is_closed:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.is_closed = True
            if self._fallbacks is not None:
                self._fallbacks.end()
            _warn(self.folder, error)

    return guarded


class Recorder:
    """Writes `report.html` and, to make it again, `run_record.json` of the run that begins now.

    It is not among the callbacks, which are transformers' and the user's. The handler tells it, after them, the events
    that it has a method for, and the Trainer what has no event. It reads the host's clock and counters of memory, and
    never waits for the device. It holds neither model nor Trainer, because it outlives the run: a script may evaluate
    once more.

    Args:
        folder: the run's, for the report.
        args: the arguments of the run.
        state: its state, which tells the step and the logs.
        model: only described.
        loader: the loader of the training batches.
        update_size: examples in an optimizer step of all processes.
        resume_from: the checkpoint that the run resumes, or None.
        restarts: those that its supervisor knows of.
    """

    def __init__(
        self,
        folder: str,
        args: Any,
        state: TrainerState,
        model: Any,
        loader: Any = None,
        update_size: int = 1,
        resume_from: str | None = None,
        restarts: Sequence[Any] = (),
    ) -> None:
        self._args, self._state, self.folder = args, state, folder
        self.ended = self.is_closed = False
        self._draws, self._has_facts, self._has_logged_path = not state.is_hyper_param_search, False, False
        self._begun = time.perf_counter()
        self._apart, self._looked, self._saved, self._page_due = _APART, 0.0, -_SAVED_APART, self._begun + _RELOAD
        self._warnings = 0
        earlier = _earlier(resume_from, state.global_step) if resume_from is not None else None
        self.record = earlier or RunRecord("", {})
        self.record.name = readable(args.run_name or "") or os.path.basename(self.folder) or self.folder
        self._rules = rules_of(args)
        self.record.origin = run_facts.origin_of(getattr(loader, "dataset", None), model, self._rules)
        self.record.model = run_facts.model_of(model, args)
        self.record.data = run_facts.data_of(args, loader, update_size)
        self.session = Session(state.global_step, self.record.seconds, time.time())
        self.record.sessions.append(self.session)
        self.record.outcome = {"kind": RUNNING, "text": ""}
        noted = {event.text for event in self.record.events}
        for restart in restarts:
            text = readable(f"{date(restart.time)} ({restart.number}): the run {restart}")
            if text not in noted:
                self._add("restart", text, step=restart.progress.step if restart.progress else 0)
        if resume_from is None:
            self._add("begin")
        else:
            self._add("resume", f"from {resume_from}")
        self._look()
        # last, because an error in another line would leave it watching
        self._fallbacks = fallbacks.FallbackWatch() if args.device.type == "mps" else None

    @_never_in_the_way
    def on_log(self, logs: Any = None, **details: Any) -> None:
        if not logs:
            return
        if "loss" not in logs:
            for name, value in logs.items():
                if name.endswith(_RUNTIME) and name != "train_runtime" and record.is_number(value):
                    self._add("evaluation", name.removesuffix(_RUNTIME), took=value)
        # a mark after an evaluation would lie between its time and its event
        elif not self.ended and time.perf_counter() - self._looked >= self._apart:
            self._look()
        if self._draws and not self.ended and time.perf_counter() >= self._page_due:
            self._write()

    @_never_in_the_way
    def on_evaluate(self, **details: Any) -> None:
        if self.ended:  # scripts evaluate once more after training
            self._write()

    @_never_in_the_way
    def predicted(self, logits: Any, labels: Any, dataset: Any, model: Any, processing_class: Any) -> None:
        """Keeps what a page shows of the predictions of an evaluation.

        Args:
            dataset: has a row for each prediction; None where the rows are not known.
            model, processing_class: name the classes and decode the texts.
        """
        if logits is not None and labels is not None:
            names = getattr(getattr(model, "config", None), "id2label", None)
            decode = getattr(processing_class, "decode", None)
            texts = None if dataset is None else lambda rows: texts_of(dataset, rows, decode)
            found = classification_of(logits, labels, names if isinstance(names, dict) else {}, texts)
            self.record.classification = found or self.record.classification

    @_never_in_the_way
    def note(self, kind: str, text: str = "", took: float = 0.0) -> None:
        """Adds an event to the time line. At a checkpoint, writes the record, unless it was written a moment ago."""
        if not self.ended:
            self._add(kind, text, took)
            if kind == "checkpoint" and time.perf_counter() - self._saved >= _SAVED_APART:
                self._save()

    @_never_in_the_way
    def end(self, error: BaseException | None) -> None:
        """Ends the record of a run that is complete, or was ended by `error`, and writes the report."""
        if not self.ended:
            self._end(error)
            # a run that was refused before its first step leaves the folder as it was
            has_trained = self._state.global_step > self.session.first_step
            if error is None or has_trained or isinstance(error, torch.OutOfMemoryError):
                self._write()
        self.is_closed = error is not None

    def _end(self, error: BaseException | None) -> None:
        state = self._state
        self._look()
        self.session.seconds = self._now() - self.session.offset
        if self._fallbacks is not None:
            found, before = self._fallbacks.end(), self.record.fallback.get("operators", [])
            named = {operator["name"] for operator in found["operators"]}
            found["operators"] += [operator for operator in before if operator["name"] not in named]
            self.record.fallback = found
        if (more := self._warnings - _WARNINGS) > 0:
            self._warnings = 0
            self._add("warning", f"{more} more warnings are not listed.")
        self.ended = True
        if error is None:
            is_complete = state.global_step >= state.max_steps
            kind, event, text = FINISHED, "end", "" if is_complete else "A callback ended it early."
        elif isinstance(error, KeyboardInterrupt):
            kind, event, text = STOPPED, "stop", "by SIGINT (Ctrl-C)"
        elif isinstance(error, SystemExit):
            signals: dict[Any, str] = {143: "by SIGTERM", 129: "by SIGHUP (its terminal closed)"}
            text = signals.get(error.code, f"with exit status {error.code}")
            kind, event = STOPPED, "stop"
        else:
            kind, event, text = FAILED, "fault", error_text(error)
        self.record.outcome = {"kind": kind, "text": readable(text)}
        self._add(event, text)

    def _add(self, kind: str, text: str = "", took: float = 0.0, step: int | None = None) -> None:
        """Adds an event at the present time; at most a hundred warnings, as a run may warn at each log."""
        self._warnings += kind == "warning"
        if kind != "warning" or self._warnings <= _WARNINGS:
            step = self._state.global_step if step is None else step
            self.record.events.append(Event(kind, step, self._now(), readable(text), took))

    def _now(self) -> float:
        """Returns the time on the training clock, which stands still when the run has ended."""
        seconds = self.session.seconds if self.ended else time.perf_counter() - self._begun
        return round(self.session.offset + seconds, 4)

    def _look(self) -> None:
        """Adds a mark: clock and memory."""
        self._looked = time.perf_counter()
        memory, state, marks = measure(self._args.device), self._state, self.session.marks
        resident = psutil.Process().memory_info().rss
        marks.append((state.global_step, self._now(), float(state.total_flos), memory.live, memory.driver, resident))
        if len(marks) >= _MARKS:
            del marks[1::2]
            self._apart *= 2

    def _write(self) -> None:
        """Writes the record and, if a page can be drawn, the page."""
        begun = time.perf_counter()
        self._save()
        if not self._draws:
            return
        try:
            from .pages import run_page
        except ModuleNotFoundError as error:
            self._draws, advice = False, "`pip install pygal jinja2`, then `mps-trainer report %s`."
            logger.warning(f"%s has no %s: %s. {advice}", self.folder, PAGE, error, self.folder)
            return
        path = os.path.join(self.folder, PAGE)
        record.replace(path, run_page(self.record, 0 if self.ended else _RELOAD))
        now = time.perf_counter()
        self._page_due = now + max(_RELOAD, _COST * (now - begun))
        if not self._has_logged_path:
            logger.info("Report of this run: %s", path)
            self._has_logged_path = True

    def _save(self) -> None:
        """Writes the record so far. Raises OSError."""
        self.session.seconds = self._now() - self.session.offset
        self._update()
        os.makedirs(self.folder, exist_ok=True)  # a trial that has saved nothing has none
        record.write(self.record, self.folder)
        self._saved = time.perf_counter()

    def _update(self) -> None:
        """Updates the facts that are looked up when the record is written, some of them once."""
        args, state, now = self._args, self._state, self.record
        now.outcome |= {"step": state.global_step, "max_steps": state.max_steps}
        now.history = record.read_history(state.log_history)
        if state.best_metric is not None:
            now.best = {
                "metric": state.best_metric,
                "step": state.best_global_step,
                "name": args.metric_for_best_model,
                "checkpoint": state.best_model_checkpoint and os.path.basename(state.best_model_checkpoint),
            }
        if self._has_facts:
            return
        self._has_facts = True
        now.device = args.decision.to_dict()
        now.arguments, now.changed = run_facts.arguments_of(args, self._rules)
        facts = for_a_report(gather_facts(environ=dict(os.environ)))
        now.environment = {"mps_trainer": __version__, **facts.to_dict()}
        now.device["simulated"] = bool(now.environment.get("mps_simulated")) and now.device["type"] == "mps"


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


def compare_trials(folder: str, begun: float) -> None:
    """Writes a page to `folder` that compares the trials in it that have ended since `begun`."""
    try:
        found = [(path.stat().st_mtime, str(path)) for path in Path(folder).rglob(record.NAME)]
        if paths := [path for changed, path in sorted(found) if changed >= begun][-_MOST_TRIALS:]:
            from .pages import comparison_page, tell_apart

            records = [record.read(path) for path in paths]
            tell_apart(records, [os.path.dirname(path) for path in paths])
            record.replace(os.path.join(folder, PAGE), comparison_page(records))
    except Exception as error:
        _warn(folder, error)
