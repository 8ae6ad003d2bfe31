"""Reads a checkpoint's trainer_state.json, and checks that each value has the type that the run needs."""

from __future__ import annotations

import os
from typing import Any

from .folders import STATE
from .storage.files import read_object
from .storage.schema import AMOUNT, COUNT, FLAG, Kind, check, is_amount, is_count, is_number, is_size, is_text, or_none


def read_state(folder: str) -> dict[str, Any]:
    """Returns the state in `folder`, by name. Unknown names are left as they are.

    Raises:
        MisconfigurationException: for a file that is damaged, lacks a value or has one of another type.
    """
    path = os.path.join(folder, STATE)
    state = read_object(path, ["global_step", "epoch", "log_history"])
    check(path, state, _VALUES)
    return state


def entries_of(saved: Any) -> list[Any]:
    """Returns the states of the callbacks of one class: one, or a list where there were several."""
    return saved if isinstance(saved, list) else [saved]


def _is_history(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and _is_logged(entry) for entry in value)


def _is_logged(entry: dict[str, Any]) -> bool:
    if not all(is_amount(entry[name]) for name in ("step", "epoch") if entry.get(name) is not None):
        return False
    return all(is_number(value) or isinstance(value, bool) for value in entry.values() if isinstance(value, int))


def _are_callbacks(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_callback(each) for saved in value.values() for each in entries_of(saved)
    )


def _is_callback(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name, {}), dict) for name in ("args", "attributes"))


_STEPS: Kind = (or_none(is_amount), AMOUNT[1])
_VALUES: dict[str, Kind] = {
    "global_step": COUNT,
    "epoch": (or_none(is_amount), AMOUNT[1]),
    "log_history": (_is_history, "a list of what was logged"),
    "best_metric": (or_none(is_number), "a number"),
    "best_model_checkpoint": (or_none(is_text), "a folder's name"),
    "best_global_step": (or_none(is_count), COUNT[1]),
    "train_batch_size": (or_none(is_size), "a whole number of at least 1"),
    "total_flos": AMOUNT,
    "num_input_tokens_seen": AMOUNT,
    **dict.fromkeys(("max_steps", "logging_steps", "eval_steps", "save_steps", "num_train_epochs"), _STEPS),
    **dict.fromkeys(("is_local_process_zero", "is_world_process_zero", "is_hyper_param_search"), FLAG),
    "trial_name": (or_none(is_text), "a name"),
    "trial_params": (or_none(lambda value: isinstance(value, dict)), "a table of parameters"),
    "stateful_callbacks": (or_none(_are_callbacks), "a table of callbacks, each with args and attributes"),
}
