"""Finds the record of a run that has ended: its own file, or the state in a checkpoint."""

from __future__ import annotations

import os
import re

from ..errors import MisconfigurationException
from .record import FINISHED, NAME, UNKNOWN, RunRecord, damaged, is_number, is_recorded, load_json, read, read_history

# As in checkpoints.manifest, which loads torch: a page is made without it.
STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(0|[1-9][0-9]*)")


def record_of(folder: str) -> RunRecord:
    """Returns the record of the run in `folder`, an output folder or a checkpoint.

    Raises:
        MisconfigurationException: if there is no run in it, or its files are damaged.
    """
    if not os.path.isdir(folder):
        what = "is a file" if os.path.exists(folder) else "does not exist"
        raise MisconfigurationException(f"{folder} {what}. Name the output_dir of a training run.")
    if is_recorded(folder):
        return read(folder)
    path = _state(folder)
    if path is None:
        raise MisconfigurationException(
            f"There is no training run in {folder}: it has no {NAME}, no {STATE} and no checkpoint. Name the "
            "output_dir of a run."
        )
    return from_state(path)


def _state(folder: str) -> str | None:
    """Returns the newest `trainer_state.json` of an output folder: its own, written at the end, or a checkpoint's."""
    names = [name for name in os.listdir(folder) if _CHECKPOINT.fullmatch(name)]
    newest = sorted(names, key=lambda name: int(name.rpartition("-")[2]), reverse=True)
    paths = [os.path.join(folder, name) for name in (STATE, *(os.path.join(name, STATE) for name in newest))]
    return next((path for path in paths if os.path.isfile(path)), None)


def from_state(path: str) -> RunRecord:
    """Returns a record of a `trainer_state.json`, of this Trainer or of transformers': curves, and no times.

    Raises:
        MisconfigurationException: if it is damaged.
    """
    state = load_json(path)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise damaged(path, "it has no log_history")
    folder = os.path.dirname(os.path.abspath(path))
    if _CHECKPOINT.fullmatch(os.path.basename(folder)):
        folder = os.path.dirname(folder)
    history = read_history(state["log_history"])
    ended = any("train_runtime" in entry for entry in history)
    numbers = {name: value for name, value in state.items() if is_number(value)}
    best = {"metric": numbers.get("best_metric"), "step": numbers.get("best_global_step")}
    return RunRecord(
        name=os.path.basename(folder) or folder,
        outcome={
            "kind": FINISHED if ended else UNKNOWN,
            "text": "",
            "step": numbers.get("global_step", 0),
            "max_steps": numbers.get("max_steps", 0),
        },
        history=history,
        best=best if "best_metric" in numbers else {},
        data={"batch_per_device": numbers["train_batch_size"]} if "train_batch_size" in numbers else {},
        source=os.path.relpath(path, folder),
    )
