"""When and how the model is evaluated while it trains."""

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
    eval_delay: float = option(0, "Steps or epochs, as eval_strategy says, before the first evaluation.", ge=0)
    eval_on_start: bool = option(False, "Evaluate before the first step.")
    prediction_loss_only: bool = option(False, "Only the loss; predictions and labels are not gathered.")
    eval_accumulation_steps: int | None = option(
        None, "Batches whose predictions stay on the device before they move to host memory. [all]", ge=1
    )
    eval_do_concat_batches: bool = option(
        True, "Join the predictions of all batches; otherwise each batch stays an entry of a list."
    )
    eval_use_gather_object: bool = option(False, "With several processes, gather objects that are not tensors.")
    include_for_metrics: list[str] = field(
        default_factory=list, metadata={"help": "What compute_metrics gets besides predictions: inputs, loss."}
    )
    batch_eval_metrics: bool = option(
        False, "Call compute_metrics after each batch, with compute_result=True after the last."
    )
