"""Loads PEFT adapters of a checkpoint into a model."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ..errors import MisconfigurationException
from ..utils.compiled import WRAPPER, plain_name
from ..utils.text import sentence

logger = logging.getLogger(__name__)

_WITH_SPARSE_TENSORS = ("SHIRA", "FROD")  # PEFT's names
_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def check_sparse_adapters(model: Any, device: torch.device) -> None:
    """Raises MisconfigurationException if the adapters compute with sparse tensors and the device cannot."""
    configs = getattr(model, "peft_config", None) or {}
    kinds = [getattr(config.peft_type, "value", config.peft_type) for config in configs.values()]
    sparse = [kind for kind in kinds if kind in _WITH_SPARSE_TENSORS]
    if not sparse:
        return
    try:  # the operations of a step, which torch may add to mps in any release
        index, value = torch.zeros(2, 1, dtype=torch.long, device=device), torch.ones(1, device=device)
        delta = torch.sparse_coo_tensor(index, value.requires_grad_(), (1, 1), check_invariants=False)
        (torch.ones(1, 1, device=device) + delta).sum().backward()
    except (NotImplementedError, RuntimeError) as error:
        raise MisconfigurationException(
            f"The model has an adapter of PEFT's {sparse[0]}, which computes with sparse tensors, and torch "
            f"{torch.__version__} does not support them on {device.type}. Use another adapter, such as LoRA, or "
            "train on the CPU with use_cpu=True."
        ) from error


def adapter_folders(folder: str) -> list[str]:
    """Returns the names of subfolders of a checkpoint that have an adapter each, and "" if it has one itself."""
    places = {name: os.path.join(folder, name) for name in [*sorted(os.listdir(folder)), ""]}
    return [name for name, path in places.items() if any(os.path.isfile(os.path.join(path, file)) for file in _FILES)]


def load_adapters(model: Any, folder: str) -> None:
    """Loads the adapters in `folder` into `model`, trained and frozen ones.

    PEFT reads the files: safetensors, or tensors alone.

    Raises:
        MisconfigurationException: if the model has none, or others.
    """
    if not hasattr(model, "peft_config"):
        raise MisconfigurationException(
            f"{folder} has PEFT adapters, and {type(model).__name__} has none. Give the Trainer a model from "
            "peft.get_peft_model with the configuration of that training."
        )
    # Where `add_adapter` of transformers made the adapters, no PeftModel is around the model, and this is a method.
    is_wrapped = not callable(model.active_adapters)
    actives = model.active_adapters if is_wrapped else model.active_adapters()
    active = actives[0]
    if len(actives) > 1:
        logger.warning("Several adapters are active: training continues with %s.", active)
    names = adapter_folders(folder)
    found = {name or ("default" if len(names) > 1 else active): os.path.join(folder, name) for name in names}
    try:
        for name, path in found.items():
            if is_wrapped:
                # else PEFT puts float32 weights in the place of bfloat16 ones, which the optimizer does not know
                settings = {"is_trainable": name == active, "autocast_adapter_dtype": False}
                loaded = model.load_adapter(path, name, **settings, **_renamed(path))
                # PEFT ignores both. Either alone is valid: some methods do not save all weights, others load more.
                if (unknown := sorted(loaded.unexpected_keys)) and loaded.missing_keys:
                    raise ValueError(f"{len(unknown)} names are unexpected, for example {unknown[0]}.")
            else:
                _load_into(model, path, name)
        if len(found) > 1:
            model.set_adapter(active)
    except (RuntimeError, ValueError, KeyError) as error:
        prompts = getattr(model.peft_config[active], "is_prompt_learning", False)
        more = " Prompt learning is best loaded with PeftModel.from_pretrained after training." if prompts else ""
        raise MisconfigurationException(
            f"The adapters in {folder} do not fit this model: {sentence(error)}{more}"
        ) from error


def _renamed(folder: str) -> dict[str, Any]:
    """Returns the argument of `load_adapter` for an adapter that was saved with the names of torch.compile's wrappers.

    PEFT keeps these names where a part of the model was compiled.
    """
    import peft

    names = peft.load_peft_weights(folder, "cpu")
    return {"key_mapping": {WRAPPER: ""}} if any(name != plain_name(name) for name in names) else {}


def _load_into(model: Any, folder: str, name: str) -> None:
    """Loads the one adapter that `save_pretrained` of transformers writes: the active one.

    `model.load_adapter` of transformers would replace parameters that the optimizer holds.
    """
    import peft

    weights = peft.load_peft_weights(folder, "cpu")
    saved = {plain_name(key).removeprefix("base_model.model."): weight for key, weight in weights.items()}
    wanted = peft.get_peft_model_state_dict(model, adapter_name=name)
    if differing := sorted(saved.keys() ^ wanted.keys()):
        raise ValueError(f"{len(differing)} names differ, for example {differing[0]}.")
    peft.set_peft_model_state_dict(model, saved, name)
