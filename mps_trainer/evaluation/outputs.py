"""Reads one batch of an evaluation: if it has a loss, its labels, and the logits of its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers.trainer_pt_utils import nested_detach


def has_loss(inputs: Mapping[str, Any], label_names: list[str], can_return_loss: bool) -> bool:
    """Returns True if the batch has all labels, or if the model gives a loss without any."""
    if label_names:
        return all(inputs.get(name) is not None for name in label_names)
    return_loss = inputs.get("return_loss")
    return bool(can_return_loss if return_loss is None else return_loss)


def keys_to_ignore(model: Any) -> list[str]:
    """Returns the keys of its outputs that the model's configuration leaves out of predictions."""
    config = getattr(model, "config", None)
    return list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])) if config else []


def labels_of(inputs: Mapping[str, Any], label_names: list[str]) -> Any:
    """Returns the labels of a batch, detached; a tuple unless there is one name."""
    labels = nested_detach(tuple(inputs.get(name) for name in label_names))
    return labels[0] if len(labels) == 1 else labels


def logits_of(outputs: Any, with_loss: bool, ignore_keys: list[str]) -> Any:
    """Returns a model's outputs without the loss, detached: a single output, or a tuple of several."""
    if isinstance(outputs, dict):
        leave_out = [*ignore_keys, "loss"] if with_loss else ignore_keys
        left = [value for key, value in outputs.items() if key not in leave_out and value is not None]
    elif isinstance(outputs, torch.Tensor):
        left = [] if with_loss else [outputs]
    else:
        left = list(outputs[1:] if with_loss else outputs)
    if not left:
        return None
    return nested_detach(left[0] if len(left) == 1 else tuple(left))
