"""Telling callbacks what happens, step by step, at no cost where nobody listens."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from transformers.trainer_callback import CallbackHandler, TrainerCallback, TrainerControl, TrainerState

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


class Events:
    """Tells the callbacks of a handler what happens, and holds what they are told: arguments, state and control.

    At the events of each step, only callbacks that do something there are called, in the handler's order and with its
    arguments. A callback that has TrainerCallback's own empty method is passed over.

    Args:
        args: returns the arguments of the Trainer.
    """

    handler: CallbackHandler
    report: RunReport | None = None  # told, after the callbacks, the events that it has a method for

    def __init__(self, args: Callable[[], Any]) -> None:
        self._args = args
        self.control = TrainerControl()
        self.state = TrainerState()

    @property
    def args(self) -> Any:
        """The arguments of the Trainer, which may get others."""
        return self._args()

    def fire(self, event: str, *, since: Any = None, **details: Any) -> None:
        """Tells every callback that `event` has come.

        Args:
            since: the callback that failed at the event before, where those before it have heard of it.
        """
        try:
            if not details and self.covers(event):
                self.control = self.tell(event, since)
            else:
                self.control = getattr(self.handler, event)(self.args, self.state, self.control, **details)
        except Exception as error:
            explain_callback(error, event, self.state.global_step)
            raise
        finally:
            self._tell_report(event, details)

    def _tell_report(self, event: str, details: dict[str, Any]) -> None:
        tell = getattr(self.report, event, None)
        if tell is not None:
            handler = self.handler
            tell(args=self.args, state=self.state, model=handler.model, loader=handler.train_dataloader, **details)

    def note(self, kind: str, text: str = "") -> None:
        """Puts on the time line of the run's report what no callback is told."""
        if self.report is not None:
            self.report.note(kind, self.state.global_step, text)

    def covers(self, event: str) -> bool:
        """Returns True for an event that `tell` may tell: not with a handler of somebody's own, or a changed one."""
        own = vars(self.handler)
        return (
            event in _OF_STEPS and type(self.handler) is CallbackHandler and not ("call_event" in own or event in own)
        )

    def has_listener(self, event: str) -> bool:
        """Returns True if a callback does something at `event`."""
        return any(_listens(callback, event) for callback in self.handler.callbacks)

    def tell(self, event: str, since: Any = None) -> Any:
        """Calls the callbacks that do something at `event`, and returns the control that they leave behind.

        Args:
            since: the first callback to call; None for all.
        """
        control = self.control
        if event == "on_step_begin":
            control.should_log = control.should_evaluate = control.should_save = False
        handler, nothing = self.handler, _OF_STEPS[event]
        told: Any = handler.callbacks  # a callback may add others
        if since in told:
            told = itertools.islice(told, told.index(since), None)
        for callback in told:
            method = getattr(callback, event)
            if getattr(method, "__func__", method) is nothing:
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
            )
            if result is not None:
                control = result
        return control


def _listens(callback: Any, event: str) -> bool:
    """Returns True if `callback` has a method of its own for `event`, found without asking the callback for it."""
    kind = type(callback)
    return (
        getattr(kind, event, None) is not getattr(TrainerCallback, event)
        or event in object.__getattribute__(callback, "__dict__")
        or kind.__getattribute__ is not object.__getattribute__  # answers as it likes
    )
