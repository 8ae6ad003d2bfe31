"""Formats the metrics of an evaluation: plain numbers, prefixed names, and speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..utils.text import shown


def plain(value: Any) -> Any:
    """Returns `value` with Python's numbers for arrays and tensors of one element, also in lists and dictionaries."""
    try:
        return _plain(value)
    except (RecursionError, RuntimeError, ValueError):  # a list in itself, a tensor on the meta device
        return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.item()
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def named_metrics(
    metrics: Mapping[Any, Any] | None, prefix: str, loss: float | None, preparation_time: float | None
) -> dict[str, Any]:
    """Returns metrics as plain numbers under names that begin with `prefix`, with the mean loss among them.

    Raises:
        TypeError: if `metrics` is no dictionary, which compute_metrics has to return.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            f"compute_metrics returned {shown(metrics)} of type {type(metrics).__name__}, and it has to return a "
            "dictionary of metrics by name, such as {'accuracy': 0.9}."
        )
    named: dict[str, Any] = {str(name): plain(value) for name, value in (metrics or {}).items()}
    if loss is not None:
        named[f"{prefix}_loss"] = loss
    if preparation_time is not None:
        named[f"{prefix}_model_preparation_time"] = preparation_time
    begins = f"{prefix}_"
    ready = {name: value for name, value in named.items() if name.startswith(begins)}
    return {**ready, **{begins + name: value for name, value in named.items() if name not in ready}}
