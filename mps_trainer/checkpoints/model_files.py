"""Writes and loads the files of a model."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save_model
from torch import nn
from transformers import PreTrainedModel

from ..distributed.fsdp import is_shard
from ..distributed.full_state import put_weights
from ..distributed.sharded import class_of, is_sharded
from ..errors import MisconfigurationException
from ..model.adapters import has_adapters, load_adapters
from ..training_args import TrainingArguments
from . import manifest, shards
from .storage.files import damaged, read_safetensors, read_tensors
from .storage.weights import WEIGHTS, weight_files

logger = logging.getLogger(__name__)

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
        with _without_bars(), _writing_here(inner):
            inner.save_pretrained(folder, **given)
    else:
        inner = inner if state_dict is None else Weights(state_dict)
        save_model(inner, os.path.join(folder, WEIGHTS), metadata={"format": "pt"})
    _save_processor_and_args(processing_class, args, folder)


def save_without_weights(model: Any, processing_class: Any, args: TrainingArguments, folder: str) -> None:
    """Writes the files of `save` except the weights, which each process writes in part."""
    os.makedirs(folder, exist_ok=True)
    if isinstance(model, PreTrainedModel):  # as its own save_pretrained does
        model.config.architectures = [class_of(model).__name__]
        model.config.dtype = str(model.dtype).removeprefix("torch.")
    for name in ("config", "generation_config"):
        part: Any = getattr(model, name, None)
        if hasattr(part, "save_pretrained"):
            part.save_pretrained(folder)
    _save_processor_and_args(processing_class, args, folder)


class Weights(nn.Module):
    """Represents a model with copied weights, for the functions that write models."""

    def __init__(self, weights: dict[str, Any]) -> None:
        super().__init__()
        self._weights = weights

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        return dict(self._weights)


def _save_processor_and_args(processing_class: Any, args: TrainingArguments, folder: str) -> None:
    if processing_class is not None and hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)
    _save_arguments(args, os.path.join(folder, ARGUMENTS))


def _save_arguments(args: TrainingArguments, path: str) -> None:
    """Writes the arguments for people to read: no code here reads the file, because unpickling could run code."""
    try:
        torch.save(args, path)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a class inside a function, for one
        logger.warning("%s was not written: the arguments cannot be pickled (%s).", path, error)
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def make_folder(path: str) -> None:
    """Creates the output folder before training starts, so that an error does not come hours later.

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


def processor_to_save(processing_class: Any, data_collator: Any) -> Any:
    """Returns the tokenizer or processor that goes with the model, or None."""
    return getattr(data_collator, "tokenizer", None) if processing_class is None else processing_class


def load_weights(model: nn.Module, folder: str) -> None:
    """Loads a checkpoint's weights into `model`, or its PEFT adapters if it has those instead.

    Raises:
        MisconfigurationException: if there are none, or they belong to another model.
    """
    if not weight_files(folder) and has_adapters(folder):
        load_adapters(model, folder)
        return
    if (changed := manifest.converted(folder)) is not None:
        logger.warning("The weights in %s were converted after they were saved: %s.", folder, changed)
    try:
        result = _put_shards(model, folder) if shards.has_shards(folder) else _put(model, _read_weights(folder))
    except RuntimeError as error:  # a shape that does not fit
        raise MisconfigurationException(f"The weights in {folder} belong to another model: {error}") from error
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or [])
    missing = set(result.missing_keys) - _sharing_memory_with_loaded(model, set(result.missing_keys)) - left_out
    unknown = set(result.unexpected_keys)
    if missing or unknown:
        # transformers writes some models under other names than they have in memory; it reads them back, too
        if hasattr(model, "from_pretrained") and _load_by_library(model, folder):
            return
        raise MisconfigurationException(
            f"The weights in {folder} belong to another model: {len(missing)} "
            f"{'parameter is' if len(missing) == 1 else 'parameters are'} missing and {len(unknown)} "
            f"{'is' if len(unknown) == 1 else 'are'} unexpected, for example {min(missing | unknown)}."
        )


def _put(model: nn.Module, weights: dict[str, torch.Tensor]) -> Any:
    return put_weights(model, weights) if is_sharded(model) else model.load_state_dict(weights, strict=False)


def _put_shards(model: nn.Module, folder: str) -> Any:
    """Loads this process's part of the sharded weights in `folder` into the model."""
    state, there = model.state_dict(keep_vars=True), shards.listed(folder, shards.WEIGHTS)
    for name, (shape, _) in there.items():
        if name in state and state[name].shape != shape:
            raise RuntimeError(f"{name} has the shape {list(shape)} there and {list(state[name].shape)} in the model.")
    shards.read_into(folder, shards.WEIGHTS, {name: state[name].detach() for name in there if name in state})
    missing, unknown = [name for name in state if name not in there], [name for name in there if name not in state]
    return nn.modules.module._IncompatibleKeys(missing, unknown)


def _read_weights(folder: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for name in weight_files(folder) or [WEIGHTS]:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise MisconfigurationException(
                f"{folder} is not a checkpoint with weights: it has no {name}. Name a folder checkpoint-<step> that "
                "the Trainer wrote."
            )
        found = read_safetensors(path) if name.endswith(".safetensors") else read_tensors(path)
        if not isinstance(found, dict) or not all(
            isinstance(key, str) and torch.is_tensor(tensor) for key, tensor in found.items()
        ):
            raise damaged(path, ValueError("it holds something other than a model's weights"))
        weights.update(found)
    return weights


def _load_by_library(model: Any, folder: str) -> bool:
    """Loads a transformers model by its own from_pretrained. Returns False if parameters are missing."""
    with _without_bars():
        kind: Any = class_of(model)
        try:
            fresh, report = kind.from_pretrained(folder, config=model.config, output_loading_info=True)
        except Exception as error:
            logger.debug("from_pretrained does not load %s", folder, exc_info=error)
            return False
    if any(report.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        return False
    _put(model, fresh.state_dict())
    return True


def _sharing_memory_with_loaded(model: nn.Module, missing: set[str]) -> set[str]:
    """Returns the names absent from a file that are tied to a parameter in it."""
    state = model.state_dict(keep_vars=True)
    # the part that a process has of a sharded one may be empty, and then lies nowhere
    place = {name: id(tensor) if is_shard(tensor) else tensor.data_ptr() for name, tensor in state.items()}
    loaded = {place[name] for name in state if name not in missing}
    return {name for name in missing if name in place and place[name] in loaded}


@contextlib.contextmanager
def _writing_here(model: Any) -> Iterator[None]:
    """Lets save_pretrained() write in any process inside; transformers' writes only in the first one.

    With save_on_each_node the first one of each machine writes.
    """
    model.should_save_on_this_rank = lambda is_main_process: is_main_process
    try:
        yield
    finally:
        del model.should_save_on_this_rank


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Hides the bar that transformers draws for each file, which would break the run's own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
