"""Attributes and methods that code replaces during a run, or on the class itself, are used."""

from unittest import mock

import pytest
import torch
from transformers import TrainerCallback

from mps_trainer import Trainer


class At(TrainerCallback):
    """Calls `work` at the first event of a kind."""

    def __init__(self, event, work):
        setattr(self, event, self.run)
        self.work, self.done = work, False

    def run(self, *args, **kwargs):
        if not self.done:
            self.done = True
            self.work()


def with_sgd(trainer):
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, gamma=0.5)


def with_new_schedule(trainer):
    trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, gamma=0.1)


@pytest.mark.parametrize("event", ["on_train_begin", "on_step_end"])
@pytest.mark.parametrize("change", [with_sgd, with_new_schedule])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_optimizer_or_schedule_replaced_by_callback_is_used(assert_same_runs, event, change, max_grad_norm):
    def run(library):
        trainer = library.trainer(max_steps=4, max_grad_norm=max_grad_norm)
        trainer.add_callback(At(event, lambda: change(trainer)))
        trainer.train()
        return trainer, trainer.model.state_dict()

    assert_same_runs(run)


@pytest.mark.parametrize("name", ["log", "_get_learning_rate", "get_batch_samples", "_clip_grad_norm", "store_flos"])
def test_method_replaced_by_callback_is_called(make_trainer, name):
    trainer = make_trainer(max_steps=2)
    watched = mock.Mock(wraps=getattr(trainer, name))
    trainer.add_callback(At("on_train_begin", lambda: setattr(trainer, name, watched)))
    trainer.train()
    assert watched.call_count >= 2


@pytest.mark.parametrize("name", ["save_model", "_save", "_save_optimizer_and_scheduler", "_save_rng_state"])
def test_writer_patched_on_the_class_is_called_with_save_async(make_trainer, name):
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=1, save_async=True)
    with mock.patch.object(Trainer, name, autospec=True, side_effect=getattr(Trainer, name)) as patched:
        trainer.train()
    assert patched.call_count == 2


def test_loss_of_patched_training_step_may_change_later(make_trainer):
    original = Trainer.training_step

    def changed(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        losses.append(loss)
        return loss

    losses = []
    trainer = make_trainer(max_steps=2, logging_steps=2)
    trainer.add_callback(At("on_step_end", lambda: losses[0].zero_()))
    with mock.patch.object(Trainer, "training_step", changed):
        trainer.train()
    first, second = trainer.state.log_history[0]["loss"], trainer.state.log_history[1]["train_loss"]
    assert first == pytest.approx(second)
    assert first > losses[1].item() / 2 + 0.1  # the mean has the first loss as it was


def test_callbacks_get_replaced_arguments(make_trainer, make_args):
    seen = mock.Mock(spec=TrainerCallback)
    trainer = make_trainer({"callbacks": [seen]})
    trainer.args = make_args(seed=7)
    trainer.evaluate()
    assert seen.on_evaluate.call_args.args[0] is trainer.args


def test_compute_metrics_replaced_during_evaluation_is_used(make_trainer):
    class Chooses(Trainer):
        def prediction_step(self, *args, **kwargs):
            self.compute_metrics = lambda prediction: {"chosen": 1.0}
            return super().prediction_step(*args, **kwargs)

    trainer = make_trainer({"kind": Chooses, "compute_metrics": lambda prediction: {"given": 1.0}})
    assert "eval_chosen" in trainer.evaluate()


def test_state_may_be_set_before_super_init(make_trainer):
    class Early(Trainer):
        def __init__(self, *args, **kwargs):
            self.state = self.control = None
            super().__init__(*args, **kwargs)

    trainer = make_trainer({"kind": Early}, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1
