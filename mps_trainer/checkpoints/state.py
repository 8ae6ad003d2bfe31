"""A checkpoint's trainer_state.json, each value of the type that the run goes on to reckon with."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from .files import damaged, read_object
from .folders import STATE


def read_state(folder: str) -> dict[str, Any]:
    """What the state in `folder` says, by name. Names that are not known here are left as they are.

    Raises:
        MisconfigurationException: for a file that is damaged, lacks a value or has one of another type.
    """
    path = os.path.join(folder, STATE)
    state = read_object(path, ["global_step", "epoch", "log_history"])
    for name, (is_right, expected) in _VALUES.items():
        if name in state and not is_right(state[name]):
            raise damaged(path, ValueError(f"{name} is {str(state[name])[:50]!r}, and {expected} is expected"))
    return state


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_history(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


_COUNT = "a whole number of at least 0"
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "global_step": (_is_count, _COUNT),
    "epoch": (_or_none(_is_amount), "a number of at least 0"),
    "log_history": (_is_history, "a list of what was logged"),
    "best_metric": (_or_none(_is_number), "a number"),
    "best_model_checkpoint": (_or_none(_is_text), "a folder's name"),
    "best_global_step": (_or_none(_is_count), _COUNT),
    "train_batch_size": (_or_none(_is_size), "a whole number of at least 1"),
    "total_flos": (_is_amount, "a number of at least 0"),
    "num_input_tokens_seen": (_is_amount, "a number of at least 0"),
    "stateful_callbacks": (_or_none(lambda value: isinstance(value, dict)), "a table of callbacks"),
}
