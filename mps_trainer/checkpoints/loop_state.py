"""Writes and reads the position of the training loop, which the step number of a checkpoint does not contain."""

from __future__ import annotations

import json
import os
from typing import Any

from .rng import file_of, files_of, read_rng
from .storage import schema
from .storage.files import read_object

FILE = "loop_state.json"
EXAMPLES_AT_A_TIME = "examples_at_a_time"  # found by auto_find_batch_size; None as long as whole batches fit
_PROCESSES = "processes"
_KEY_OF_0_1 = "loop"  # in the files of the generators, where version 0.1 saved the position


def write(folder: str, positions: list[dict[str, Any]]) -> None:
    """Writes the positions of all processes, which differ in the sum of their losses since the last log."""
    with open(os.path.join(folder, FILE), "w", encoding="utf-8") as file:
        json.dump({_PROCESSES: positions}, file, indent=2)


def read(folder: str, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """Returns the position of process `rank` of `size`, or {} for a checkpoint without one, such as transformers'.

    Where another number of processes wrote the checkpoint, each continues with the mean of their losses.

    Raises:
        MisconfigurationException: for a damaged file.
    """
    path = os.path.join(folder, FILE)
    if os.path.lexists(path):
        positions = read_object(path, [_PROCESSES])[_PROCESSES]
        schema.check(path, {_PROCESSES: positions}, {_PROCESSES: (_is_list_of_tables, "a list of tables")})
        for each in positions:
            _check(path, each, _PROCESSES)
    else:
        positions = _positions_of_0_1(folder)
    if not all(positions):
        return {}
    if len(positions) == size:
        return positions[rank]
    mean = sum(each["sum"] for each in positions) / len(positions)
    return {**positions[rank % len(positions)], "sum": mean}


def _positions_of_0_1(folder: str) -> list[dict[str, Any]]:
    made_by = len(files_of(folder))
    positions = []
    for rank in range(made_by):
        position = (read_rng(folder, rank, made_by) or {}).get(_KEY_OF_0_1, {})
        _check(os.path.join(folder, file_of(rank, made_by)), position, _KEY_OF_0_1)
        if "due" in position:  # its name in 0.1
            position["postponed"] = position.pop("due")
        positions.append(position)
    return positions


def _check(path: str, position: Any, within: str) -> None:
    schema.check(path, {within: position}, {within: (lambda value: isinstance(value, dict), "a table")})
    of_epoch = ("batches", "epoch_has_ended") if "epoch" in position else ()
    schema.check(path, position, _POSITION, (*_OF_METER, *of_epoch) if position else (), within=within)


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and each for each in value)


def _is_list_of_work(value: Any) -> bool:
    return isinstance(value, list) and all(each in ("evaluate", "save") for each in value)


_OF_METER: tuple[str, ...] = ("sum", "total", "first_step", "last_read_step")
_POSITION: dict[str, schema.Kind] = {
    **dict.fromkeys(("sum", "total"), schema.NUMBER),
    **dict.fromkeys(("first_step", "last_read_step", "epoch", "batches"), schema.COUNT),
    "epoch_has_ended": schema.FLAG,
    **dict.fromkeys(("postponed", "due"), (_is_list_of_work, "a list of evaluate and save")),
    EXAMPLES_AT_A_TIME: (schema.or_none(schema.is_size), "a whole number of at least 1"),
}
