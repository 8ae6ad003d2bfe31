"""The lines at log level info that say what a run is about to do."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..callbacks.overview import expected_checkpoints
from ..data.buckets import buckets_of
from ..data.loader import length_of

if TYPE_CHECKING:
    from .loop import TrainingLoop

# The logger whose level scripts for transformers set, and whose lines they and their users look for.
logger = logging.getLogger("transformers.trainer")


def announce(loop: TrainingLoop) -> None:
    """Sizes of data, batches and model, and where a resumed run goes on."""
    if not logger.isEnabledFor(logging.INFO):
        return
    args, trainer, plan = loop.args, loop.trainer, loop.plan
    trainable = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    known = length_of(loop.loader) is not None
    rows = {
        "Device": f"{args.device}: {args.decision.reason}",
        "Num examples": f"{trainer.num_examples(loop.loader):,}" if known else "unknown",
        "Num Epochs": f"{plan.epochs:,}" if known else "as many as the steps take",
        "Batch size per device": f"{trainer._train_batch_size:,}",
        "Gradient Accumulation steps": f"{args.gradient_accumulation_steps:,}",
        "Examples in an optimization step": f"{trainer.get_total_train_batch_size(args):,}",
        "Total optimization steps": f"{plan.max_steps:,}",
        "Number of trainable parameters": f"{trainable:,}",
    }
    logger.info("***** Running training *****")
    for name, value in rows.items():
        logger.info("  %s = %s", name, value)
    if (buckets := buckets_of(loop.loader)) is not None:
        logger.info("  Length buckets: %s", buckets)
    logger.info("  Checkpoints: %s", expected_checkpoints(args, trainer.state, trainer.model))
    if loop.first_step:
        logger.info("  Going on after step %d, in epoch %d", loop.first_step, plan.epoch_of(loop.first_step))
