"""Records a run while it trains and writes its report at the end."""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..reports.record import NAME, PAGE, RunRecord, read, replace
from ..utils.text import sentence
from .overview import examples_in_step

if TYPE_CHECKING:
    from ..launching.restarts import Restart
    from ..reports.recorder import Recorder

logger = logging.getLogger(__name__)

_RELOAD = 15  # seconds between two pages of a run that goes on, and after which an open one loads itself again
_COST = 100  # a page is written at most in a hundredth of the time
_MOST_TRIALS = 40  # one page compares the last ones of a search


def _never_in_the_way(method: Callable[..., None]) -> Callable[..., None]:
    """Makes an error in a report one warning, which never ends a run."""

    @functools.wraps(method)
    def guarded(self: RunReport, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            folder, self._recorder = self._folder, None
            logger.warning("%s has no %s of this run: %s", folder, PAGE, sentence(error))

    return guarded


class RunReport:
    """Writes `report.html` and, to make it again, `run_record.json`. The page on reports describes them.

    It is not among the callbacks, which are transformers' and the user's. The handler tells it, after them, the three
    events that it has a method for, and the Trainer what has no event: saves in the background, errors, the end of
    all work. The first process writes, the others do nothing.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._resumed_from: str | None = None
        self._restarts: Sequence[Restart] = ()
        self._draws = True
        self._trials: list[str] = []  # folders of the search that is going on
        self._recorder: Recorder | None = None
        self._has_logged_path = False
        self._decode: Callable[..., str] | None = None  # token ids to text
        self._page_due = math.inf  # when it is written next while the run lasts

    def expect(
        self, folder: str, resumed_from: str | None, draws: bool = True, restarts: Sequence[Restart] = ()
    ) -> None:
        """Prepares for a run in `folder`; without `draws` it leaves no page."""
        self._restarts = restarts
        folder = os.path.abspath(folder)  # a callback may change the working folder
        self._folder, self._resumed_from, self._draws = folder, resumed_from, draws
        self._recorder, self._has_logged_path = None, False
        if not draws and folder not in self._trials:
            self._trials.append(folder)

    @_never_in_the_way
    def on_train_begin(
        self, args: Any, state: Any, model: Any, loader: Any, processing_class: Any = None, **details: Any
    ) -> None:
        if self._folder is None or not state.is_world_process_zero:
            return
        from ..reports.recorder import Recorder

        batch = examples_in_step(args, state)
        self._recorder = Recorder(self._folder, args, state, model, loader, batch, self._resumed_from, self._restarts)
        self._page_due = time.perf_counter() + _RELOAD
        self._decode = getattr(processing_class, "decode", None)

    @_never_in_the_way
    def on_log(self, logs: Any = None, **details: Any) -> None:
        if self._recorder is not None and logs:
            self._recorder.log(logs)
            if self._draws and not self._recorder.ended and time.perf_counter() >= self._page_due:
                self._write(self._recorder)

    @_never_in_the_way
    def on_evaluate(self, state: Any, **details: Any) -> None:
        if self._recorder is not None and self._recorder.ended:  # scripts evaluate once more after training
            self._recorder.state = state
            self._write(self._recorder)

    @_never_in_the_way
    def predicted(self, logits: Any, labels: Any, dataset: Any) -> None:
        """Keeps what a page shows of the predictions of an evaluation."""
        if self._recorder is not None and logits is not None and labels is not None:
            from ..reports.classification import classification_of, texts_of

            recorder, decode = self._recorder, self._decode
            texts = None if dataset is None else lambda rows: texts_of(dataset, rows, decode)
            found = classification_of(logits, labels, recorder.classes, texts)
            recorder.record.classification = found or recorder.record.classification

    @_never_in_the_way
    def note(self, kind: str, step: int, text: str, took: float = 0.0) -> None:
        """Adds an event to the time line. At a checkpoint it may also write the record to disk."""
        if self._recorder is not None and not self._recorder.ended:
            self._recorder.note(kind, step, text, took)

    @_never_in_the_way
    def end(self, error: BaseException | None) -> None:
        """Ends the record of a run that is complete, or was ended by `error`."""
        recorder = self._recorder
        if recorder is None or recorder.ended:
            return
        recorder.end(error)
        # a run that was refused before its first step leaves the folder as it was
        has_trained = recorder.state.global_step > recorder.session.first_step
        if error is None or has_trained or isinstance(error, torch.OutOfMemoryError):
            self._write(recorder)
        if error is not None:
            self._recorder = None

    @_never_in_the_way
    def end_search(self, folder: str) -> None:
        """Writes a page to `folder` that compares the trials of a search."""
        trials, self._trials = [trial for trial in self._trials if os.path.isfile(os.path.join(trial, NAME))], []
        if trials := trials[-_MOST_TRIALS:]:
            from ..reports.pages import comparison_page, tell_apart

            self._folder = folder
            records: list[RunRecord] = [read(os.path.join(trial, NAME)) for trial in trials]
            tell_apart(records, trials)
            replace(os.path.join(folder, PAGE), comparison_page(records))

    def _write(self, recorder: Recorder) -> None:
        """Writes the record and, if a page can be drawn, the page."""
        begun = time.perf_counter()
        recorder.save()
        if not self._draws:
            return
        try:
            from ..reports.pages import run_page
        except ModuleNotFoundError as error:
            self._draws, advice = False, "`pip install pygal jinja2`, then `mps-trainer report %s`."
            logger.warning(f"%s has no %s: %s. {advice}", recorder.folder, PAGE, error, recorder.folder)
            return
        path = os.path.join(recorder.folder, PAGE)
        replace(path, run_page(recorder.record, 0 if recorder.ended else _RELOAD))
        now = time.perf_counter()
        self._page_due = now + max(_RELOAD, _COST * (now - begun))
        if not self._has_logged_path:
            logger.info("Report of this run: %s", path)
            self._has_logged_path = True
