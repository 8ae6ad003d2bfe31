"""A model on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from .files import read_object, read_safetensors

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


def make_folder(path: str) -> None:
    """Makes the output folder, before hours of training and not after.

    Raises:
        MisconfigurationException: if it cannot be made or written to.
    """
    try:
        os.makedirs(path, exist_ok=True)
        writable = os.access(path, os.W_OK)
        why = "permission denied"
    except OSError as error:
        writable, why = False, error.strerror or str(error)
    if not writable:
        raise MisconfigurationException(f"Nothing can be written to output_dir {path}: {why}. Name another folder.")


def load_weights(model: nn.Module, folder: str) -> None:
    """Loads a checkpoint's safetensors into `model`.

    Raises:
        MisconfigurationException: if there are none, or they are another model's.
    """
    weights = _read_weights(folder)
    try:
        result = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # a shape that does not fit
        raise MisconfigurationException(f"The weights in {folder} are another model's: {error}") from error
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or [])
    missing = set(result.missing_keys) - _sharing_memory_with_loaded(model, weights) - left_out
    unknown = set(result.unexpected_keys)
    if missing or unknown:
        # transformers writes some models under other names than they have in memory; it reads them back, too
        if hasattr(model, "from_pretrained") and _load_by_library(model, folder):
            return
        raise MisconfigurationException(
            f"The weights in {folder} are another model's: {len(missing)} of this model's parameters are missing and "
            f"{len(unknown)} are unknown to it, {min(missing | unknown)} for one."
        )


def _read_weights(folder: str) -> dict[str, torch.Tensor]:
    index = os.path.join(folder, f"{WEIGHTS}.index.json")
    files = [WEIGHTS]
    if os.path.isfile(index):
        files = sorted(set(read_object(index, ["weight_map"])["weight_map"].values()))
    weights: dict[str, torch.Tensor] = {}
    for name in files:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            adapters = os.path.isfile(os.path.join(folder, "adapter_model.safetensors"))
            raise MisconfigurationException(
                f"{folder} has PEFT adapters, which this release cannot load. Load them with PEFT."
                if adapters
                else f"{folder} is not a checkpoint with weights: it has no {name}. "
                "Name a folder checkpoint-<step> that the Trainer wrote."
            )
        weights.update(read_safetensors(path))
    return weights


def _load_by_library(model: Any, folder: str) -> bool:
    """Loads a transformers model by its own from_pretrained; False if that does not find every parameter either."""
    with _without_bars():
        fresh, report = type(model).from_pretrained(folder, config=model.config, output_loading_info=True)
    if any(report.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        return False
    model.load_state_dict(fresh.state_dict())
    return True


def _sharing_memory_with_loaded(model: nn.Module, weights: dict[str, torch.Tensor]) -> set[str]:
    """Names that are absent from a file because they are tied to a parameter that is in it."""
    state = model.state_dict(keep_vars=True)
    loaded = {state[name].data_ptr() for name in weights if name in state}
    return {name for name, tensor in state.items() if tensor.data_ptr() in loaded}


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
