"""What to do when the device has no memory left."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_utils import TrainOutput

from ..errors import MisconfigurationException
from .loop import TrainingLoop

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)

# How torch's allocators say it. Those of cuda and xpu have a type of their own besides.
_MESSAGES = ("out of memory", "DefaultCPUAllocator: can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED")


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device, or the host, has too little memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


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


def free_unused(device: torch.device) -> None:
    """Gives memory that no tensor uses back to the system."""
    module = getattr(torch, device.type, None)
    # the graphs are those that mps has compiled; not in every torch
    for name in ("empty_cache", "clear_graph_cache"):
        if callable(give_back := getattr(module, name, None)):
            give_back()
