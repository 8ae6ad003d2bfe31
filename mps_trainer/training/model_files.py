"""A model on disk, and what is switched on in it before training."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..errors import MisconfigurationException
from ..training_args import TrainingArguments

WEIGHTS = "model.safetensors"
ARGUMENTS = "training_args.json"


def save(model: nn.Module, processing_class: Any, args: TrainingArguments, folder: str) -> None:
    """Writes weights, configuration, tokenizer or processor, and arguments. Weights are safetensors."""
    os.makedirs(folder, exist_ok=True)
    save_pretrained: Any = getattr(model, "save_pretrained", None)
    if save_pretrained is not None:
        with _without_bars():
            save_pretrained(folder)
    else:
        from safetensors.torch import save_model

        save_model(model, os.path.join(folder, WEIGHTS), metadata={"format": "pt"})
    if processing_class is not None and hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)
    with open(os.path.join(folder, ARGUMENTS), "w", encoding="utf-8") as file:
        file.write(args.to_json_string() + "\n")


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """transformers draws a bar for each file that it writes, across the one of the run."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def enable_activation_checkpointing(model: nn.Module, settings: Any) -> None:
    """Makes the model compute activations again in the backward pass.

    Raises:
        MisconfigurationException: if the model has no such switch.
    """
    # transformers 5 gave the method its new name on the way; both are in the supported range
    enable = getattr(model, "activation_checkpointing_enable", None) or getattr(
        model, "gradient_checkpointing_enable", None
    )
    if enable is None:
        raise MisconfigurationException(
            f"activation_checkpointing=True, but {type(model).__name__} has no gradient_checkpointing_enable(). "
            "Leave it out, or use torch.utils.checkpoint in the model's forward()."
        )
    enable(settings or {"use_reentrant": False})
