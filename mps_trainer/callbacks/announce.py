"""Logs at level info what a run is about to do."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.trainer_callback import TrainerState

from ..data.buckets import buckets_of
from ..data.loader import length_of
from ..devices import ACCELERATORS
from ..devices.facts import cpu_bfloat16
from ..training_args import TrainingArguments
from ..utils.overrides import Overrides
from .overview import expected_checkpoints

if TYPE_CHECKING:
    from ..loop.plan import StepPlan

# The logger whose level scripts for transformers set, and whose lines they and their users look for.
logger = logging.getLogger("transformers.trainer")


def announce(
    args: TrainingArguments,
    model: nn.Module,
    loader: Any,
    plan: StepPlan,
    state: TrainerState,
    overrides: Overrides,
    *,
    batch_size: int,
    update_size: int,
    num_examples: int,
) -> None:
    """Logs the sizes of data, batches and model, and the step at which a resumed run continues.

    Args:
        batch_size: examples in a batch of one process.
        update_size: examples in an optimizer step of all processes.
        num_examples: in the training dataset, if its length is known.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    known = length_of(loader) is not None
    advice = ACCELERATORS[args.device.type].precision_advice(cpu_bfloat16())
    precision = {"no": "as the model's weights"}.get(args.mixed_precision, f"autocast to {args.mixed_precision}")
    rows = {
        "Device": f"{args.device}: {args.decision.reason}",
        "Precision": precision if advice is None else f"{precision}; {advice}",
        "Num examples": f"{num_examples:,}" if known else "unknown",
        "Num Epochs": f"{plan.epochs:,}" if known else "as many as the steps take",
        "Batch size per device": f"{batch_size:,}",
        "Gradient Accumulation steps": f"{args.gradient_accumulation_steps:,}",
        "Examples in an optimization step": f"{update_size:,}",
        "Total optimization steps": f"{plan.max_steps:,}",
        "Number of trainable parameters": f"{trainable:,}",
    }
    logger.info("***** Running training *****")
    for name, value in rows.items():
        logger.info("  %s = %s", name, value)
    if (buckets := buckets_of(loader)) is not None:
        logger.info("  Length buckets: %s", buckets)
    logger.info("  Checkpoints: %s", expected_checkpoints(args, state, model))
    for text in overrides.texts():
        logger.info("  Off: %s", text)
    if state.global_step:
        step = state.global_step
        logger.info("  Resuming after step %d, in epoch %d", step, plan.epoch_of(step))
