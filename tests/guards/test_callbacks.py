"""A callback that raises: the error stays what it is, and says whose it is."""

import pytest
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from mps_trainer.errors import explanation_of

# Events, and the steps that are done then.
EVENTS = [("on_init_end", 0), ("on_optimizer_step", 0), ("on_log", 1), ("on_prediction_step", 1), ("on_train_end", 2)]


class Broken(TrainerCallback):
    def __init__(self, event):
        setattr(self, event, lambda *args, **kwargs: {}["accuracy"])


def explained(train):
    with pytest.raises(KeyError) as caught:
        train()
    return explanation_of(caught.value)


@pytest.mark.parametrize(("event", "step"), EVENTS)
def test_its_class_the_event_and_the_step_are_named(make_trainer, event, step):
    settings = {"max_steps": 2, "eval_strategy": "steps", "save_strategy": "steps", "save_steps": 1}
    explanation = explained(lambda: make_trainer({"callbacks": [Broken(event)]}, **settings).train())
    assert explanation.startswith(f"The callback Broken failed at {event}, after step {step}. ")
    assert "accuracy" not in explanation  # it stands below the error
    assert "\n" not in explanation


def test_a_handler_of_ones_own_tells_as_well(make_trainer):
    trainer = make_trainer({"callbacks": [Broken("on_step_begin")]}, max_steps=2)
    handler = trainer.callback_handler
    given = handler.callbacks, trainer.model, None, handler.optimizer, handler.lr_scheduler
    trainer.callback_handler = type("Own", (CallbackHandler,), {})(*given)
    assert explained(trainer.train).startswith("The callback Broken failed at on_step_begin")
