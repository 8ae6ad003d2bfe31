"""Attributes and methods that code replaces while a run is under way, or on the class itself, are used."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import Trainer

from .conftest import assert_same_logs, bert_classifier, sentences


class At(TrainerCallback):
    """Calls `work` at an event, once."""

    def __init__(self, event, work):
        setattr(self, event, self.run)
        self.work, self.done = work, False

    def run(self, *args, **kwargs):
        if not self.done:
            self.done = True
            self.work()


def run(library, event, work, **settings):
    trainer = library.trainer(bert_classifier(), trainer={"train_dataset": sentences()}, max_steps=4, **settings)
    trainer.add_callback(At(event, lambda: work(trainer)))
    trainer.train()
    return trainer


def with_sgd(trainer):
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, gamma=0.5)


def with_new_schedule(trainer):
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, gamma=0.1)


@pytest.mark.parametrize("event", ["on_train_begin", "on_step_end"])
@pytest.mark.parametrize("change", [with_sgd, with_new_schedule])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_an_optimizer_or_schedule_that_a_callback_replaces_is_the_one_that_steps(both, event, change, max_grad_norm):
    def trained(library):
        trainer = run(library, event, change, max_grad_norm=max_grad_norm)
        return trainer.state.log_history, sum(p.double().abs().sum().item() for p in trainer.model.parameters())

    theirs, ours = both(trained)
    assert_same_logs(ours[0], theirs[0])
    assert ours[1] == pytest.approx(theirs[1], rel=1e-6)


@pytest.mark.parametrize("name", ["log", "_get_learning_rate", "get_batch_samples", "_clip_grad_norm", "store_flos"])
def test_a_method_that_a_callback_replaces_is_called(make_trainer, name):
    trainer = make_trainer(max_steps=2, logging_steps=1)
    watched = mock.Mock(wraps=getattr(trainer, name))
    trainer.add_callback(At("on_train_begin", lambda: setattr(trainer, name, watched)))
    trainer.train()
    assert watched.call_count >= 2


@pytest.mark.parametrize("name", ["save_model", "_save", "_save_optimizer_and_scheduler", "_save_rng_state"])
def test_a_writer_that_is_patched_on_the_class_is_called_beside_save_async(make_trainer, name):
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=1, save_async=True)
    with mock.patch.object(Trainer, name, autospec=True, side_effect=getattr(Trainer, name)) as patched:
        trainer.train()
    assert patched.call_count == 2


def test_a_step_that_is_patched_on_the_class_may_change_its_loss(make_trainer):
    original = Trainer.training_step

    def changed(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        later.append(loss)
        return loss

    later = []
    trainer = make_trainer(max_steps=2, logging_steps=2)
    trainer.add_callback(At("on_step_end", lambda: later[0].zero_()))
    with mock.patch.object(Trainer, "training_step", changed):
        trainer.train()
    first, second = trainer.state.log_history[0]["loss"], trainer.state.log_history[1]["train_loss"]
    assert first == pytest.approx(second)
    assert first > later[1].item() / 2 + 0.1  # the first loss is in the mean as it was


def test_callbacks_get_the_arguments_that_the_trainer_has(make_trainer, make_args):
    class Notes(TrainerCallback):
        seen = None

        def on_evaluate(self, args, *rest, **kwargs):
            self.seen = args

    notes = Notes()
    trainer = make_trainer({"callbacks": [notes]})
    trainer.args = make_args(seed=7)
    trainer.evaluate()
    assert notes.seen is trainer.args


def test_metrics_that_are_chosen_during_an_evaluation_are_computed(make_trainer):
    class Chooses(Trainer):
        def prediction_step(self, *args, **kwargs):
            self.compute_metrics = lambda prediction: {"chosen": 1.0}
            return super().prediction_step(*args, **kwargs)

    trainer = make_trainer({"kind": Chooses, "compute_metrics": lambda prediction: {"given": 1.0}})
    assert "eval_chosen" in trainer.evaluate()


def test_a_subclass_may_set_the_state_before_the_trainer_is_made(make_trainer):
    class Early(Trainer):
        def __init__(self, *args, **kwargs):
            self.state = self.control = None
            super().__init__(*args, **kwargs)

    trainer = make_trainer({"kind": Early}, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1
