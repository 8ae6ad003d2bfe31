"""Telling callbacks what happens, step by step, at no cost where nobody listens."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import CallbackHandler, TrainerCallback

# Those of each step. All others are told by transformers' handler.
_OF_STEPS = frozenset(
    [
        "on_step_begin",
        "on_substep_end",
        "on_pre_optimizer_step",
        "on_optimizer_step",
        "on_step_end",
        "on_prediction_step",
    ]
)


class StepEvents:
    """Calls those callbacks of a handler that do something at an event, in the handler's order and with its arguments.

    A callback that has TrainerCallback's own empty method is passed over. `covers` says for which events; the handler
    itself is to tell the others.
    """

    def __init__(self, handler: CallbackHandler) -> None:
        self.handler = handler
        self._callbacks: list[Any] = []  # what the handler had when the listeners were looked up
        self._listeners: dict[str, list[Any]] = {}

    def covers(self, event: str) -> bool:
        """Not where somebody has put a handler of their own in place, or has changed this one."""
        return event in _OF_STEPS and type(self.handler) is CallbackHandler and "call_event" not in vars(self.handler)

    def listeners(self, event: str) -> list[Any]:
        """The methods that do something at `event`."""
        if self._callbacks != self.handler.callbacks:
            self._callbacks, self._listeners = list(self.handler.callbacks), {}
        found = self._listeners.get(event)
        if found is None:
            nothing = getattr(TrainerCallback, event)
            methods = [getattr(callback, event) for callback in self._callbacks]
            found = [method for method in methods if getattr(method, "__func__", method) is not nothing]
            self._listeners[event] = found
        return found

    def tell(self, event: str, args: Any, state: Any, control: Any) -> Any:
        """The control that the callbacks leave behind."""
        if event == "on_step_begin":
            control.should_log = control.should_evaluate = control.should_save = False
        handler = self.handler
        for method in self.listeners(event):
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
