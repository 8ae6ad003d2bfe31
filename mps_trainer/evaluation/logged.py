"""Filters metrics and logs for trainer_state.json, and warns about values that it cannot hold."""

from __future__ import annotations

import copy
import json
import logging
from typing import TYPE_CHECKING, Any

from .metrics import plain

if TYPE_CHECKING:
    from transformers.trainer_callback import TrainerState

logger = logging.getLogger(__name__)


_LARGEST = 1e300  # an int of Python has no bound, and float() has


def is_number(value: Any) -> bool:
    """Returns True for a number that float() takes, nan and infinity among them."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST


def is_savable(value: Any) -> bool:
    """Returns True for a value that a checkpoint's JSON can hold and a resumed run accepts."""
    if value is None or isinstance(value, (bool, str)):
        return True
    if isinstance(value, (int, float)):
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
        self._told: set[str] = set()

    def of(self, logs: dict[Any, Any]) -> dict[str, Any]:
        """Returns those of `logs` that can be saved, under names that are text."""
        values = {str(name): plain(value) for name, value in logs.items()}
        for name, value in values.items():
            if not is_savable(value):
                self._tell(name, value, "is not saved: trainer_state.json cannot hold it")
        return {name: value for name, value in values.items() if is_savable(value)}

    def number(self, name: str, value: Any) -> float:
        """Returns the metric that selects the best checkpoint. Warns and returns nan if it is not a number."""
        value = plain(value)
        if is_number(value) or isinstance(value, bool):
            return float(value) if isinstance(value, bool) else value
        self._tell(
            f"{name} of metric_for_best_model",
            value,
            "cannot be compared and counts as nan. Name a metric that is a number",
        )
        return float("nan")

    def save(self, state: TrainerState, path: str) -> None:
        """Writes `state` without log entries that JSON cannot hold.

        Raises:
            OSError: if the disk does not take it.
        """
        try:
            state.save_to_json(path)
        except OSError:
            raise
        except Exception:  # of an object that is copied first, whatever it raises
            savable = copy.copy(state)
            savable.log_history = [self.of(entry) for entry in state.log_history]
            savable.save_to_json(path)

    def _tell(self, name: str, value: Any, consequence: str) -> None:
        if name not in self._told:
            self._told.add(name)
            logger.warning("The metric %s is of type %s and %s.", name, type(value).__name__, consequence)
