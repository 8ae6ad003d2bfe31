"""Callbacks are called as transformers' handler calls them."""

from types import SimpleNamespace
from unittest import mock

import pytest
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler, TrainerControl

from mps_trainer.callbacks.events import Events


class Completes(TrainerCallback):
    """Notes the control and the other arguments that it gets, and returns a control."""

    def __init__(self, said, control=None):
        self.said, self.control = said, control

    def on_checkpoint_complete(self, args, state, control, **kwargs):
        self.said.append((control, kwargs))
        return self.control


@pytest.mark.parametrize("own", [{}, {"call_event": mock.Mock(side_effect=AttributeError)}], ids=["", "SetFit's"])
def test_callbacks_that_know_an_event_of_this_package_are_called_in_order_and_pass_the_control_on(own):
    said, other = [], TrainerControl()
    callbacks = [Completes(said, other), TrainerCallback(), Completes(said)]
    handler = CallbackHandler(callbacks, "model", "tokenizer", "optimizer", "schedule")
    vars(handler).update(own)
    trainer = SimpleNamespace(args=None, state=None, control=None, callback_handler=handler)
    Events(trainer).fire("on_checkpoint_complete", checkpoint="run/c-2")
    assert trainer.control is said[1][0] is other
    names = {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"}
    assert said[0][1].keys() == names | {"checkpoint"}
    assert (said[0][1]["optimizer"], said[0][1]["checkpoint"]) == ("optimizer", "run/c-2")


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("name", ["call_event", "on_step_end"])
def test_a_method_of_the_handler_that_is_replaced_is_used(make_trainer, name, of_class):
    trainer = make_trainer(max_steps=1)
    handler = trainer.callback_handler
    own = mock.Mock(wraps=getattr(handler, name))
    if of_class:
        handler.__class__ = type("Own", (type(handler),), {name: lambda self, *given, **more: own(*given, **more)})
    else:
        setattr(handler, name, own)
    trainer.train()
    told = [call.args[0] if name == "call_event" else name for call in own.call_args_list]
    assert told.count("on_step_end") == 1
