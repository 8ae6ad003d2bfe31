"""A model on disk."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save_file, save_model
from torch import nn
from transformers import PreTrainedModel

from ..checkpoints.files import read_object, read_safetensors, read_tensors
from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from .adapters import has_adapters, load_adapters

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
PICKLED_WEIGHTS = "pytorch_model.bin"
ARGUMENTS = "training_args.bin"


def save(
    model: nn.Module,
    processing_class: Any,
    args: TrainingArguments,
    folder: str,
    state_dict: dict[str, Any] | None = None,
) -> None:
    """Writes weights, configuration, tokenizer or processor, and arguments. Weights are safetensors.

    Args:
        state_dict: weights to write instead of the model's own.
    """
    os.makedirs(folder, exist_ok=True)
    inner: Any = getattr(model, "_orig_mod", model)
    if isinstance(inner, PreTrainedModel) or hasattr(inner, "peft_config"):
        given = {} if state_dict is None else {"state_dict": state_dict}
        with _without_bars():
            inner.save_pretrained(folder, **given)
    elif state_dict is not None:
        save_file(state_dict, os.path.join(folder, WEIGHTS), metadata={"format": "pt"})
    else:
        save_model(inner, os.path.join(folder, WEIGHTS), metadata={"format": "pt"})
    if processing_class is not None and hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)
    _save_arguments(args, os.path.join(folder, ARGUMENTS))


def _save_arguments(args: TrainingArguments, path: str) -> None:
    """For whoever wants to look at them: nothing here reads the file, because reading it could run code."""
    try:
        torch.save(args, path)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a class inside a function, for one
        logger.warning("%s was not written: the arguments cannot be pickled (%s).", path, error)
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


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
    """Loads a checkpoint's weights into `model`, or its PEFT adapters if it has those instead.

    Raises:
        MisconfigurationException: if there are none, or they are another model's.
    """
    if not _weight_files(folder) and has_adapters(folder):
        load_adapters(model, folder)
        return
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


def _weight_files(folder: str) -> list[str]:
    """Names of the files with the weights: safetensors, or what torch.save wrote of tensors alone."""
    for name in (WEIGHTS, PICKLED_WEIGHTS):
        if os.path.isfile(index := os.path.join(folder, f"{name}.index.json")):
            return sorted(set(read_object(index, ["weight_map"])["weight_map"].values()))
        if os.path.isfile(os.path.join(folder, name)):
            return [name]
    return []


def _read_weights(folder: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for name in _weight_files(folder) or [WEIGHTS]:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise MisconfigurationException(
                f"{folder} is not a checkpoint with weights: it has no {name}. "
                "Name a folder checkpoint-<step> that the Trainer wrote."
            )
        weights.update(read_safetensors(path) if name.endswith(".safetensors") else read_tensors(path))
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
