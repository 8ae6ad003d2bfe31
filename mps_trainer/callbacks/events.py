"""Calls the callbacks at each event, and skips events that no callback handles."""

from __future__ import annotations

import itertools
from typing import Any, Protocol

from transformers.trainer_callback import (
    CallbackHandler,
    ExportableState,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from ..guards.callbacks import explain_callback
from .run_report import RunReport

# Those of each step, with TrainerCallback's own method, which does nothing. transformers' handler tells the others.
_OF_STEPS = {
    event: getattr(TrainerCallback, event)
    for event in (
        "on_step_begin",
        "on_substep_end",
        "on_pre_optimizer_step",
        "on_optimizer_step",
        "on_step_end",
        "on_prediction_step",
    )
}

# A callback of this package's users may define it; TrainerCallback and transformers' handler do not know it.
CHECKPOINT_COMPLETE = "on_checkpoint_complete"


class ReportingHandler(CallbackHandler):
    """transformers' handler. After the callbacks it passes each event to the report of the run.

    Events that a subclass of the Trainer tells the handler itself are in the report too.
    """

    report: RunReport | None = None

    def call_event(self, event: str, args: Any, state: Any, control: Any, **details: Any) -> Any:
        try:
            return super().call_event(event, args, state, control, **details)
        finally:
            if (tell := getattr(self.report, event, None)) is not None:
                given = {
                    "model": self.model,
                    "loader": self.train_dataloader,
                    "processing_class": self.processing_class,
                }
                tell(args=args, state=state, **given, **details)


class HasArguments(Protocol):
    """A Trainer, for its arguments."""

    args: Any


class Events:
    """Calls the callbacks of a handler and holds their arguments: arguments, state and control.

    At the events of each step, only callbacks that do something there are called, in the handler's order and with its
    arguments. A callback that has TrainerCallback's own empty method is passed over.

    Args:
        trainer: has the arguments, `args`.
    """

    handler: CallbackHandler

    def __init__(self, trainer: HasArguments) -> None:
        self._trainer = trainer
        self.control = TrainerControl()
        self.state = TrainerState()

    @property
    def args(self) -> Any:
        """The arguments of the Trainer, which may get others."""
        return self._trainer.args

    def fire(self, event: str, *, since: Any = None, **details: Any) -> None:
        """Tells every callback that `event` has come.

        Args:
            since: the callback to begin with, where those before it have heard of this event; for one that `covers`.
        """
        try:
            if event == CHECKPOINT_COMPLETE or (not details and self.covers(event)):
                self.control = self.tell(event, since, **details)
            else:
                self.control = getattr(self.handler, event)(self.args, self.state, self.control, **details)
        except Exception as error:
            explain_callback(error, event, self.state.global_step)
            raise

    @property
    def report(self) -> RunReport | None:
        """Returns the report of the run, or None if there is none or the user replaced the handler."""
        return getattr(self.handler, "report", None)

    def note(self, kind: str, text: str = "") -> None:
        """Adds an event that no callback sees to the time line of the report."""
        if self.report is not None:
            self.report.note(kind, self.state.global_step, text)

    def stateful_callbacks(self) -> dict[str, Any]:
        """Returns the states of the callbacks and the control for a checkpoint, by class name."""
        stateful = [part for part in (*self.handler.callbacks, self.control) if isinstance(part, ExportableState)]
        return TrainerState(stateful_callbacks=stateful).stateful_callbacks

    def covers(self, event: str) -> bool:
        """Returns True if `tell` may call the callbacks directly: the handler is this package's and unchanged."""
        own, is_plain = vars(self.handler), type(self.handler) in (CallbackHandler, ReportingHandler)
        return event in _OF_STEPS and is_plain and not ("call_event" in own or event in own)

    def has_listener(self, event: str) -> bool:
        """Returns True if a callback does something at `event`."""
        return any(_listens(callback, event) for callback in self.handler.callbacks)

    def tell(self, event: str, since: Any = None, **details: Any) -> Any:
        """Calls the callbacks that do something at `event`, and returns the control that they leave behind.

        Args:
            since: the first callback to call; None for all.
        """
        control = self.control
        if event == "on_step_begin":
            control.should_log = control.should_evaluate = control.should_save = False
        handler, nothing = self.handler, _OF_STEPS.get(event)  # None where TrainerCallback lacks the event
        told: Any = handler.callbacks  # a callback may add others
        if since in told:
            told = itertools.islice(told, told.index(since), None)
        for callback in told:
            method = getattr(callback, event, nothing)
            if method is None or getattr(method, "__func__", method) is nothing:
                continue
            result = method(
                self.args,
                self.state,
                control,
                model=handler.model,
                processing_class=handler.processing_class,
                optimizer=handler.optimizer,
                lr_scheduler=handler.lr_scheduler,
                train_dataloader=handler.train_dataloader,
                eval_dataloader=handler.eval_dataloader,
                **details,
            )
            if result is not None:
                control = result
        return control


def _listens(callback: Any, event: str) -> bool:
    """Returns True if the class of `callback` overrides the method for `event`."""
    kind = type(callback)
    return (
        getattr(kind, event, None) is not getattr(TrainerCallback, event, None)
        or event in object.__getattribute__(callback, "__dict__")
        or kind.__getattribute__ is not object.__getattribute__  # answers as it likes
    )
