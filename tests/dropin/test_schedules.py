"""Learning-rate schedules: transformers' Trainer and this one, side by side on the CPU."""

import pytest
from transformers.trainer_utils import SchedulerType

import mps_trainer
from mps_trainer import MisconfigurationException
from tests.conftest import logged
from tests.dropin.pairs import assert_same_weights, both, make

# With their default settings, these are constant for ten steps.
CONSTANT = ("constant", "reduce_lr_on_plateau", "greedy")
SCHEDULES = [
    *[(name.value, {}) for name in SchedulerType if name.value not in ("cosine_with_min_lr", "warmup_stable_decay")],
    ("cosine_with_restarts", {"num_cycles": 2}),
    ("polynomial", {"power": 2.0, "lr_end": 1e-5}),
    ("inverse_sqrt", {"timescale": 3}),
    ("cosine_with_min_lr", {"min_lr": 1e-4}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.3}),
    ("warmup_stable_decay", {"num_decay_steps": 3, "min_lr_ratio": 0.1, "decay_type": "cosine"}),
    ("reduce_lr_on_plateau", {"factor": 0.2, "patience": 0, "threshold": 10.0}),
    ("greedy", {"patience": 0, "factor": 0.5, "min_lr": 1e-4}),
]


@pytest.mark.parametrize(("name", "settings"), SCHEDULES)
def test_schedule_has_learning_rates_of_transformers(name, settings, tmp_path):
    if name == "cosine_warmup_with_min_lr" and not settings:
        settings = {"min_lr": 1e-5}
    ours, theirs = both(
        tmp_path,
        **{"lr_scheduler_type": name, "lr_scheduler_kwargs": settings, "warmup_steps": 0.25, "max_steps": 10},
        **{"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"},
    )
    ours.train()
    theirs.train()
    assert type(ours.lr_scheduler) is type(theirs.lr_scheduler)
    rates = logged(ours, "learning_rate")
    assert rates == logged(theirs, "learning_rate")
    assert (len(set(rates)) > 1) is (bool(settings) or name not in CONSTANT)
    assert_same_weights(ours, theirs)


def test_unknown_setting_of_schedule_is_refused(tmp_path):
    trainer = make(mps_trainer, tmp_path, lr_scheduler_type="cosine", lr_scheduler_kwargs={"min_lr": 1e-6})
    with pytest.raises(TypeError, match="min_lr") as error:
        trainer.create_optimizer_and_scheduler(10)
    assert isinstance(error.value, MisconfigurationException)


def test_settings_for_schedule_without_any_are_warned_of(tmp_path, caplog):
    trainer = make(mps_trainer, tmp_path, lr_scheduler_type="constant", lr_scheduler_kwargs={"power": 2})
    trainer.create_optimizer_and_scheduler(10)
    assert "lr_scheduler_kwargs" in caplog.text
