"""Evaluation during training."""

from __future__ import annotations

from dataclasses import dataclass, field

from .choices import IntervalStrategy
from .fields import option


@dataclass
class EvaluationArguments:
    eval_strategy: IntervalStrategy | str = option("no", "When to evaluate during training: no, steps or epoch.")
    eval_steps: float | None = option(
        None, "Steps between two evaluations; below 1, a fraction of all steps. [logging_steps]", ge=0
    )
    eval_delay: float = option(0, "Steps or epochs (see eval_strategy) before the first evaluation.", ge=0)
    eval_on_start: bool = option(False, "Evaluate before the first step.")
    prediction_loss_only: bool = option(False, "Compute only the loss; do not gather predictions and labels.")
    eval_accumulation_steps: int | None = option(
        None, "Number of batches after which predictions move from the device to host memory. [all]", ge=1
    )
    eval_do_concat_batches: bool = option(
        True, "Concatenate the predictions of all batches; otherwise return a list with an entry per batch."
    )
    eval_use_gather_object: bool = option(False, "With several processes, gather objects that are not tensors.")
    include_for_metrics: list[str] = field(
        default_factory=list, metadata={"help": "Further data for compute_metrics besides predictions: inputs, loss."}
    )
    batch_eval_metrics: bool = option(
        False, "Call compute_metrics after each batch, with compute_result=True after the last."
    )
