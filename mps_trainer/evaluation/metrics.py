"""Formats metrics and logs: plain numbers, prefixed names, and only values that trainer_state.json can hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..utils.text import shown

logger = logging.getLogger(__name__)
_LARGEST = 1e300  # an int of Python has no bound, and float() has


def is_number(value: Any) -> bool:
    """Returns True for a number that float() takes, nan and infinity among them."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST


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
    if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
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


def _is_savable(value: Any) -> bool:
    """Returns True for a value that a checkpoint's JSON can hold and a resumed run accepts."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return is_number(value)
    try:
        json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def as_cell(value: Any) -> Any:
    """Returns `value` as a table can show it: a number, or one line of text."""
    return value if isinstance(value, (int, float)) else " ".join(str(value).split())


class SavableLogs:
    """Removes values that cannot be saved from logs, and warns once for each name."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def of(self, logs: dict[Any, Any]) -> dict[str, Any]:
        """Returns those of `logs` that can be saved, under names that are text."""
        values = {str(name): plain(value) for name, value in logs.items()}
        for name, value in values.items():
            if not _is_savable(value):
                self._warn(name, value, "is not saved: trainer_state.json cannot hold it")
        return {name: value for name, value in values.items() if _is_savable(value)}

    def number(self, name: str, value: Any) -> float:
        """Returns the metric that selects the best checkpoint. Warns and returns nan if it is not a number."""
        value = plain(value)
        if is_number(value) or isinstance(value, bool):
            return float(value) if isinstance(value, bool) else value
        self._warn(
            f"{name} of metric_for_best_model",
            value,
            "cannot be compared and counts as nan. Name a metric that is a number",
        )
        return float("nan")

    def _warn(self, name: str, value: Any, consequence: str) -> None:
        if name not in self._named:
            self._named.add(name)
            logger.warning("The metric %s is of type %s and %s.", name, type(value).__name__, consequence)
