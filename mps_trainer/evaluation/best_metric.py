"""Finds the best checkpoint by its metric. `Checkpoints.load_best` loads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from transformers.trainer_callback import TrainerState

from ..errors import UnknownMetricError
from ..training_args import TrainingArguments


def watched_metric(
    args: TrainingArguments, metrics: Mapping[str, Any], as_number: Callable[[str, Any], float]
) -> float:
    """Returns the value of `metric_for_best_model` in an evaluation.

    Args:
        as_number: `(name, value) -> number`, which is nan for a value that is none.

    Raises:
        UnknownMetricError: if the evaluation has no such metric.
    """
    name = "eval_" + str(args.metric_for_best_model).removeprefix("eval_")
    if name not in metrics:
        raise UnknownMetricError(
            f"metric_for_best_model={args.metric_for_best_model!r} is not among the metrics of the "
            f"evaluation: {', '.join(sorted(metrics))}. Name one of them."
        )
    return as_number(name, metrics[name])


def record_if_best(
    args: TrainingArguments, state: TrainerState, metrics: Mapping[str, Any], as_number: Callable[[str, Any], float]
) -> bool:
    """Returns True if an evaluation is the best so far, and records its metric and step in `state` if it is."""
    if args.metric_for_best_model is None:
        return False
    value = watched_metric(args, metrics, as_number)
    if state.best_metric is None or math.isnan(state.best_metric):  # any number is better than nan
        state.best_metric = -math.inf if args.greater_is_better else math.inf
    is_best = value > state.best_metric if args.greater_is_better else value < state.best_metric
    if is_best:
        state.best_metric = value
        if args.save_strategy != "no":
            state.best_global_step = state.global_step
    return is_best
