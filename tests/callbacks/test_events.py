"""Callbacks are told of each step as transformers' handler would tell them."""

from types import SimpleNamespace

import pytest
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler, TrainerControl

from mps_trainer.callbacks.events import Events

EVENT = "on_step_end"


class Silent(TrainerCallback):
    pass


class Speaking(TrainerCallback):
    def __init__(self, said, control=None):
        self.said, self.control = said, control

    def on_step_end(self, args, state, control, **kwargs):
        self.said.append((control, kwargs))
        return self.control


def events_of(handler, control=None):
    events = Events(SimpleNamespace(args=None))
    events.handler = handler
    events.control = control or events.control
    return events


def handler(*callbacks):
    return CallbackHandler(list(callbacks), "model", "tokenizer", "optimizer", "schedule")


def test_those_that_do_something_are_called_in_order_with_the_handlers_arguments():
    said, other = [], TrainerControl()
    handled = handler(Speaking(said, other), Silent(), Speaking(said))
    control = TrainerControl()
    assert events_of(handled, control).tell(EVENT) is other
    assert [each[0] for each in said] == [control, other]
    theirs = []
    handled.callbacks = [Speaking(theirs)]
    handled.on_step_end(None, None, control)
    assert said[0][1] == theirs[0][1]


class Completes(TrainerCallback):
    def __init__(self, said, control=None):
        self.said, self.control = said, control

    def on_checkpoint_complete(self, args, state, control, checkpoint, **kwargs):
        self.said.append((control, checkpoint, kwargs))
        return self.control


def test_a_complete_checkpoint_is_told_to_those_that_define_the_event_with_the_handlers_arguments():
    said, other = [], TrainerControl()
    handled = handler(Silent(), Completes(said, other), Speaking([]), Completes(said))
    events = events_of(handled, first := TrainerControl())
    events.fire("on_checkpoint_complete", checkpoint="run/checkpoint-2")
    assert events.control is other
    assert [each[:2] for each in said] == [(first, "run/checkpoint-2"), (other, "run/checkpoint-2")]
    theirs = []
    handled.callbacks = [Speaking(theirs)]
    handled.on_step_end(None, None, first)
    assert said[0][2] == theirs[0][1]


def test_a_callback_may_be_asked_for_an_event_that_not_all_know():
    events = events_of(handler(Silent()))
    assert not events.has_listener("on_checkpoint_complete")
    events.handler.add_callback(Completes([]))
    assert events.has_listener("on_checkpoint_complete")


def test_one_that_comes_or_goes_during_a_run_is_noticed():
    said, handled = [], handler(Silent())
    events = events_of(handled)
    assert not events.has_listener(EVENT)
    handled.add_callback(speaking := Speaking(said))
    assert events.has_listener(EVENT)
    handled.remove_callback(speaking)
    assert not events.has_listener(EVENT)


def test_a_method_given_to_one_callback_counts():
    callback, said = Silent(), []
    events = events_of(handler(callback))
    events.tell(EVENT)
    callback.on_step_end = lambda *args, **kwargs: said.append(1)
    events.tell(EVENT)
    assert said == [1]
    assert events.has_listener(EVENT)


def test_one_that_is_added_during_an_event_hears_of_it():
    said, handled = [], handler(Silent())

    class Adding(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            handled.add_callback(Speaking(said))

    handled.add_callback(Adding())
    events_of(handled).tell(EVENT)
    assert len(said) == 1


@pytest.mark.parametrize("name", ["call_event", EVENT])
def test_a_handler_that_somebody_has_changed_is_used(name):
    handled = handler(Silent())
    setattr(handled, name, lambda *args, **kwargs: None)
    assert not events_of(handled).covers(EVENT)


def test_a_step_begins_with_nothing_asked_for():
    control = TrainerControl(should_log=True, should_evaluate=True, should_save=True)
    events_of(handler(Silent()), control).tell("on_step_begin")
    assert (control.should_log, control.should_evaluate, control.should_save) == (False, False, False)


@pytest.mark.parametrize("event", ["on_log", "on_epoch_end", "on_train_begin"])
def test_other_events_are_the_handlers(event):
    assert not events_of(handler(Silent())).covers(event)


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
