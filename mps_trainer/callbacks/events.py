"""Calls the callbacks at each event, and tells the report of the run."""

from __future__ import annotations

import copy
import functools
from typing import Any, Protocol

from transformers.trainer_callback import (
    CallbackHandler,
    ExportableState,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from ..guards.callbacks import explain_callback
from ..reports.recorder import Recorder

# A callback of this package's users may define it; TrainerCallback and transformers' handler do not know it.
CHECKPOINT_COMPLETE = "on_checkpoint_complete"


class ReportingHandler(CallbackHandler):
    """transformers' handler. After the callbacks it passes each event to the report of the run.

    Events that a subclass of the Trainer tells the handler itself are in the report too.
    """

    report: Recorder | None = None

    def call_event(self, event: str, args: Any, state: Any, control: Any, **details: Any) -> Any:
        try:
            return super().call_event(event, args, state, control, **details)
        finally:
            if (method := getattr(self.report, event, None)) is not None:
                method(**details)


class FiringTrainer(Protocol):
    """Names what callbacks get of a Trainer."""

    args: Any
    state: TrainerState
    control: TrainerControl
    callback_handler: CallbackHandler


class Events:
    """Fires events at the callbacks of a Trainer. Made for a call or a run: the Trainer does not keep it."""

    def __init__(self, trainer: FiringTrainer) -> None:
        self.trainer = trainer

    def fire(self, event: str, *, since: Any = None, **details: Any) -> None:
        """Calls the method for `event` of each callback.

        Args:
            since: the callback to begin with, where those before it were called; for an event that `covers`.
        """
        trainer, handler = self.trainer, self.trainer.callback_handler
        try:
            if since is None and event != CHECKPOINT_COMPLETE:
                method = getattr(handler, event)
            else:
                some, first = copy.copy(handler), handler.callbacks.index(since) if since in handler.callbacks else 0
                some.callbacks = [each for each in handler.callbacks[first:] if hasattr(each, event)]
                # the class's method: SetFit replaces the handler's by one that tells all callbacks
                method = functools.partial(CallbackHandler.call_event, some, event)
            trainer.control = method(trainer.args, trainer.state, trainer.control, **details)
        except Exception as error:
            explain_callback(error, event, trainer.state.global_step)
            raise

    def report_to(self, report: Recorder | None) -> None:
        """Passes the events of a run to its report; not with a handler of the user's, which would tell it nothing."""
        if isinstance(handler := self.trainer.callback_handler, ReportingHandler):
            handler.report = report

    @property
    def report(self) -> Recorder | None:
        """Returns the report of the run, or None if there is none or the user replaced the handler."""
        return getattr(self.trainer.callback_handler, "report", None)

    def note(self, kind: str, text: str = "", took: float = 0.0) -> None:
        """Adds an event that no callback sees, and that `took` seconds, to the time line of the report."""
        if self.report is not None:
            self.report.note(kind, text, took)

    def stateful_callbacks(self) -> dict[str, Any]:
        """Returns the states of the callbacks and the control for a checkpoint, by class name."""
        stateful = [
            part
            for part in (*self.trainer.callback_handler.callbacks, self.trainer.control)
            if isinstance(part, ExportableState)
        ]
        return TrainerState(stateful_callbacks=stateful).stateful_callbacks

    def covers(self, event: str) -> bool:
        """Returns True if nothing but the callbacks hears of `event`: the handler has no code of the user's."""
        handler = self.trainer.callback_handler
        own, is_plain = vars(handler), type(handler) in (CallbackHandler, ReportingHandler)
        return is_plain and "call_event" not in own and event not in own

    def has_listener(self, event: str) -> bool:
        """Returns True if code from outside this package does something at `event`.

        The display, for one, neither reads the files of a checkpoint nor gradients.
        """
        nothing = getattr(TrainerCallback, event, None)
        for callback in self.trainer.callback_handler.callbacks:
            method = getattr(callback, event, None)
            function = getattr(method, "__func__", method)
            if function is None or function is nothing:
                continue
            if not (getattr(function, "__module__", None) or "").startswith("mps_trainer."):
                return True
        return False
