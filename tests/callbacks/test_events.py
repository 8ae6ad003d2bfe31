"""Callbacks are called as transformers' handler calls them."""

from types import SimpleNamespace

import pytest
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler, TrainerControl

from mps_trainer.callbacks.events import Events

EVENT = "on_step_end"


class Speaking(TrainerCallback):
    """Notes the control and the other arguments that it gets, and returns a control."""

    def __init__(self, said, control=None):
        self.said, self.control = said, control

    def on_step_end(self, args, state, control, **kwargs):
        self.said.append((control, kwargs))
        return self.control


class Completes(Speaking):
    def on_checkpoint_complete(self, args, state, control, **kwargs):
        return self.on_step_end(args, state, control, **kwargs)


@pytest.fixture
def fired():
    """`fired(callbacks, event, **details)` fires the event at the callbacks, and returns the events."""

    def fire(callbacks, event=EVENT, **details):
        events = Events(SimpleNamespace(args=None))
        events.handler = CallbackHandler(callbacks, "model", "tokenizer", "optimizer", "schedule")
        events.fire(event, **details)
        return events

    return fire


@pytest.mark.parametrize("details", [{"event": EVENT}, {"event": "on_checkpoint_complete", "checkpoint": "run/c-2"}])
def test_callbacks_are_called_in_order_and_pass_the_control_on(fired, details):
    said, other = [], TrainerControl()
    events = fired([TrainerCallback(), Completes(said, other), Completes(said)], **details)
    assert events.control is other
    assert said[1][0] is other
    names = {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"}
    assert said[0][1].keys() == names | details.keys() - {"event"}
    assert (said[0][1]["optimizer"], said[0][1].get("checkpoint")) == ("optimizer", details.get("checkpoint"))


def test_a_callback_that_is_added_during_an_event_hears_of_it(fired):
    said = []

    class Adding(TrainerCallback):
        def on_checkpoint_complete(self, *args, **kwargs):
            callbacks.append(Completes(said))

    events = fired([])
    callbacks = events.handler.callbacks
    callbacks.append(Adding())
    events.fire("on_checkpoint_complete")
    assert len(said) == 1


@pytest.mark.parametrize("name", ["call_event", EVENT])
def test_a_handler_with_code_of_the_users_is_not_covered(fired, name):
    events = fired([TrainerCallback()])
    assert events.covers(EVENT)
    setattr(events.handler, name, lambda *args, **kwargs: None)
    assert not events.covers(EVENT)


def test_a_handler_of_ones_own_is_used(make_trainer):
    told = []

    class Own(CallbackHandler):
        def call_event(self, event, *args, **kwargs):
            told.append(event)
            return super().call_event(event, *args, **kwargs)

    trainer = make_trainer(max_steps=1)
    trainer.callback_handler.__class__ = Own
    trainer.train()
    assert told.count("on_pre_optimizer_step") == 1
    assert told.count("on_step_end") == 1
