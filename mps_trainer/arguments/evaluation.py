"""When and how the model is evaluated while it trains."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import IntervalStrategy
from .fields import option


@dataclass
class EvaluationArguments:
    eval_strategy: IntervalStrategy | str = option("no", "When to evaluate during training: no, steps or epoch.")
    eval_steps: float | None = option(
        None, "Steps between two evaluations; below 1, a fraction of all steps. [logging_steps]"
    )
    eval_delay: float = option(0, "Steps or epochs, as eval_strategy says, before the first evaluation.")
    eval_on_start: bool = option(False, "Evaluate before the first step.")
    prediction_loss_only: bool = option(False, "Only the loss; predictions and labels are not gathered.")
    eval_accumulation_steps: int | None = option(
        None, "Batches whose predictions stay on the device before they move to host memory. [all]"
    )
