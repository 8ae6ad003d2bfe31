"""Decides whether an evaluation is the best so far, and records it."""

from types import SimpleNamespace

import pytest
from transformers.trainer_callback import TrainerState

from mps_trainer.errors import UnknownMetricError
from mps_trainer.evaluation.best_metric import record_if_best, watched_metric


def settings(metric="f1", greater_is_better=True, save_strategy="steps"):
    return SimpleNamespace(
        metric_for_best_model=metric, greater_is_better=greater_is_better, save_strategy=save_strategy
    )


def number(name, value):
    return float(value)


@pytest.mark.parametrize(
    ("greater_is_better", "best", "value", "is_best"),
    [
        (True, None, 0.1, True),
        (True, 0.5, 0.6, True),
        (True, 0.5, 0.5, False),
        (False, 0.5, 0.6, False),
        (False, 0.5, 0.4, True),
        (False, 0.5, 0.5, False),
        (True, float("nan"), 0.1, True),
        (True, 0.5, float("nan"), False),
    ],
)
def test_the_best_so_far_is_recorded(greater_is_better, best, value, is_best):
    state = TrainerState(global_step=7, best_metric=best)
    args = settings(greater_is_better=greater_is_better)
    assert record_if_best(args, state, {"eval_f1": value}, number) is is_best
    assert (state.best_metric, state.best_global_step) == ((value, 7) if is_best else (best, None))


def test_the_step_of_the_best_is_not_recorded_where_nothing_is_saved():
    state = TrainerState(global_step=7)
    assert record_if_best(settings(save_strategy="no"), state, {"eval_f1": 1}, number)
    assert (state.best_metric, state.best_global_step) == (1, None)


def test_the_metric_may_be_named_with_its_prefix_and_has_to_be_there():
    assert watched_metric(settings("eval_f1"), {"eval_f1": 2}, number) == 2
    with pytest.raises(UnknownMetricError, match="'f1' is not among the metrics of the evaluation: eval_loss"):
        watched_metric(settings(), {"eval_loss": 2}, number)
