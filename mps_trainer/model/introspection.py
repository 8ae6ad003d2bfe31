"""Reads properties of a model: its base model, its arguments of the loss, the devices that it spans."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from ..distributed.ddp import inside
from ..errors import MisconfigurationException


def base_model(model: Any) -> Any:
    """Returns the model under PEFT's adapters and torch's replica, or `model` itself."""
    model = inside(model)
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    peft = sys.modules.get("peft")
    if peft is not None and isinstance(model, peft.PeftMixedModel):  # the one kind without get_base_model
        return model.base_model.model
    return model


def accepts_loss_kwargs(model: nn.Module) -> bool:
    """Returns True if forward() takes arguments of the loss, such as num_items_in_batch."""
    model = base_model(model)
    if hasattr(model, "accepts_loss_kwargs"):
        return bool(model.accepts_loss_kwargs)
    parameters = inspect.signature(model.forward).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def main_input_name(model: Any) -> str:
    """Returns the name of the model's main input, by default `input_ids`."""
    return getattr(model, "main_input_name", "input_ids")


def spans_devices(model: nn.Module) -> bool:
    """Returns True if `from_pretrained(device_map=...)` has spread the model over several accelerators."""
    places = set((getattr(model, "hf_device_map", None) or {}).values())
    return len(places - {"cpu", "disk"}) > 1


def require_trainable(model: nn.Module) -> None:
    """Raises ValueError for a quantized model that has no adapters to train."""
    if not getattr(model, "is_quantized", False):
        return
    try:
        from transformers.trainer_utils import validate_quantization_for_training
    except ImportError:  # not in the first releases of transformers 5
        return
    validate_quantization_for_training(model)


def check_trainable(model: nn.Module) -> None:
    """Raises MisconfigurationException if no parameter of `model` requires a gradient."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise MisconfigurationException(
            f"There is nothing to train: no parameter of {type(model).__name__} requires a gradient. Unfreeze some "
            "with requires_grad_(True), or add adapters to the model, for example with PEFT's get_peft_model."
        )


def is_transformed() -> bool:
    """Returns True inside `torch.compile` and the transforms of `torch.func`, which trace the called code."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
