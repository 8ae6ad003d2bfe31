"""A callback that raises: the error stays what it is, and says whose it is."""

import pytest
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from mps_trainer.errors import explanation_of

EVENTS = [
    "on_init_end",
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_log",
    "on_prediction_step",
    "on_evaluate",
    "on_save",
    "on_epoch_end",
    "on_train_end",
]


class Broken(TrainerCallback):
    def __init__(self, event):
        def fail(*args, **kwargs):
            raise KeyError("accuracy")

        setattr(self, event, fail)


def explained(make_trainer, callback):
    with pytest.raises(KeyError) as caught:
        make_trainer(
            {"callbacks": [callback]},
            max_steps=2,
            eval_strategy="steps",
            save_strategy="steps",
            save_steps=1,
        ).train()
    return explanation_of(caught.value)


@pytest.mark.parametrize("event", EVENTS)
def test_its_class_and_the_event_are_named(make_trainer, event):
    explanation = explained(make_trainer, Broken(event))
    assert explanation.startswith(f"The callback Broken failed at {event}, after step ")
    assert "accuracy" not in explanation  # it stands below the error
    assert "\n" not in explanation


def test_the_step_is_named(make_trainer):
    class AtThree(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise KeyError("accuracy")

    with pytest.raises(KeyError) as caught:
        make_trainer({"callbacks": [AtThree]}, max_steps=5).train()
    assert "AtThree failed at on_step_end, after step 3." in explanation_of(caught.value)


def test_a_handler_of_ones_own_tells_as_well(make_trainer):
    class Own(CallbackHandler):
        pass

    trainer = make_trainer({"callbacks": [Broken("on_step_begin")]}, max_steps=2)
    handler = trainer.callback_handler
    trainer.callback_handler = Own(handler.callbacks, trainer.model, None, handler.optimizer, handler.lr_scheduler)
    with pytest.raises(KeyError) as caught:
        trainer.train()
    assert explanation_of(caught.value).startswith("The callback Broken failed at on_step_begin")
