"""Decides whether an evaluation is the best so far, and records it."""

from types import SimpleNamespace

import pytest
from transformers.trainer_callback import TrainerState

from mps_trainer.errors import UnknownMetricError
from mps_trainer.evaluation.best_metric import record_if_best


def record(state, metric="f1", greater_is_better=True, save_strategy="steps", **metrics):
    args = SimpleNamespace(
        metric_for_best_model=metric, greater_is_better=greater_is_better, save_strategy=save_strategy
    )
    return record_if_best(args, state, metrics, lambda name, value: float(value))


@pytest.mark.parametrize(
    ("greater_is_better", "best", "value", "is_best"),
    [
        (True, None, 0.1, True),
        (True, 0.5, 0.6, True),
        (True, 0.5, 0.5, False),
        (False, 0.5, 0.4, True),
        (False, 0.5, 0.5, False),
        (True, float("nan"), 0.1, True),
        (True, 0.5, float("nan"), False),
    ],
)
def test_the_best_so_far_is_recorded(greater_is_better, best, value, is_best):
    state = TrainerState(global_step=7, best_metric=best)
    assert record(state, greater_is_better=greater_is_better, eval_f1=value) is is_best
    assert (state.best_metric, state.best_global_step) == ((value, 7) if is_best else (best, None))


def test_the_metric_is_named_with_its_prefix_or_without_and_its_step_recorded_where_something_is_saved():
    state = TrainerState(global_step=7)
    assert record(state, "eval_f1", save_strategy="no", eval_f1=1)
    assert (state.best_metric, state.best_global_step) == (1, None)
    with pytest.raises(UnknownMetricError, match="'f1' is not among the metrics of the evaluation: eval_loss"):
        record(state, eval_loss=2)
