"""A training batch that fits into the memory of the device."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from transformers.trainer_utils import TrainOutput

from ..errors import MisconfigurationException
from ..guards.memory import free_unused, out_of_memory
from .loop import TrainingLoop

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)


def run_with_batch_that_fits(trainer: Trainer, resume_from: str | None, trial: Any) -> TrainOutput:
    """Trains; with `auto_find_batch_size`, anew with a batch of 0.9 times the size whenever memory runs out.

    Raises:
        MisconfigurationException: if not even a batch of one example fits.
    """
    while True:
        try:
            return TrainingLoop(trainer, resume_from, trial).run()
        except RuntimeError as error:
            if not trainer.args.auto_find_batch_size or not out_of_memory(error):
                raise
            size = int(trainer._train_batch_size * 0.9)  # accelerate's step
            if not size:
                raise MisconfigurationException(
                    f"auto_find_batch_size: not even a batch of one example fits into the memory of "
                    f"{trainer.args.device}. Use a smaller model, shorter examples or activation_checkpointing."
                ) from error
        logger.warning("Memory ran out with batches of %d examples: trying %d.", trainer._train_batch_size, size)
        trainer._train_batch_size = size
        trainer.model.zero_grad()
        free_unused(trainer.args.device)
