"""Writes trainer_state.json, without the values of logs that JSON cannot hold."""

from __future__ import annotations

import copy
import json
import logging
import os
from typing import Any

from transformers.trainer_callback import TrainerState

from ..utils.numbers import is_number, plain
from .manifest import STATE

logger = logging.getLogger(__name__)


def write_trainer_state(state: TrainerState, folder: str, savable_logs: SavableLogs) -> None:
    """Writes trainer_state.json into `folder`.

    Raises:
        OSError: if the disk does not take it.
    """
    path = os.path.join(folder, STATE)
    try:
        state.save_to_json(path)
    except OSError:
        raise
    except Exception:  # an object that is copied first may raise any
        savable = copy.copy(state)
        savable.log_history = [savable_logs.of(entry) for entry in state.log_history]
        savable.save_to_json(path)


def _is_savable(value: Any) -> bool:
    """Returns True for a value that a checkpoint's JSON can hold and a resumed run accepts."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return is_number(value)
    try:
        json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


class SavableLogs:
    """Removes values that cannot be saved from logs, and warns once for each name.

    Args:
        warned: the names that earlier objects warned about; new ones are added.
    """

    def __init__(self, warned: set[str] | None = None) -> None:
        self._warned: set[str] = set() if warned is None else warned

    def of(self, logs: dict[Any, Any]) -> dict[str, Any]:
        """Returns the `logs` that can be saved, under names that are text."""
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
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("The metric %s is of type %s and %s.", name, type(value).__name__, consequence)
