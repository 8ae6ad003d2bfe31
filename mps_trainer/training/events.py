"""Telling callbacks what happens, step by step, at no cost where nobody listens."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import CallbackHandler, TrainerCallback

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


class StepEvents:
    """Calls those callbacks of a handler that do something at an event, in the handler's order and with its arguments.

    A callback that has TrainerCallback's own empty method is passed over. `covers` says for which events; the handler
    itself is to tell the others.
    """

    def __init__(self, handler: CallbackHandler) -> None:
        self.handler = handler

    def covers(self, event: str) -> bool:
        """Not where somebody has put a handler of their own in place, or has changed this one."""
        own = vars(self.handler)
        return (
            event in _OF_STEPS and type(self.handler) is CallbackHandler and not ("call_event" in own or event in own)
        )

    def has_listener(self, event: str) -> bool:
        """Whether a callback does something at `event`."""
        return any(_listens(callback, event) for callback in self.handler.callbacks)

    def tell(self, event: str, args: Any, state: Any, control: Any) -> Any:
        """The control that the callbacks leave behind."""
        if event == "on_step_begin":
            control.should_log = control.should_evaluate = control.should_save = False
        handler, nothing = self.handler, _OF_STEPS[event]
        for callback in handler.callbacks:
            method = getattr(callback, event)
            if getattr(method, "__func__", method) is nothing:
                continue
            result = method(
                args,
                state,
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
    """Whether `callback` has a method of its own for `event`, found without asking the callback for it."""
    kind = type(callback)
    return (
        getattr(kind, event, None) is not getattr(TrainerCallback, event)
        or event in object.__getattribute__(callback, "__dict__")
        or kind.__getattribute__ is not object.__getattribute__  # answers as it likes
    )
