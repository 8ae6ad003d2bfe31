"""Reads the files of a checkpoint with the states of the random number generators."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

import numpy as np

from ..data.data_rng import NESTED, ORDER_SEED
from ..random_state import rng_state, set_rng
from .storage import schema
from .storage.files import damaged, read_tensors

logger = logging.getLogger(__name__)

FILE = "rng_state.pth"


def file_of(rank: int, size: int) -> str:
    """Returns the name of the file of process `rank` of `size`."""
    return FILE if size == 1 else f"rng_state_{rank}.pth"


def read_rng(checkpoint: str, rank: int = 0, size: int = 1) -> dict[str, Any] | None:
    """Returns the generators' states of process `rank` in `checkpoint`; None without such a file.

    Where another number of processes made it, this one goes on with the generators of one of them.

    Raises:
        MisconfigurationException: for a damaged file.
    """
    path = os.path.join(checkpoint, _file_for(checkpoint, rank, size))
    if not os.path.isfile(path):
        if os.path.lexists(path):
            raise damaged(path, ValueError("it is a folder, or a link that leads nowhere"))
        return None
    state = read_tensors(path, allowed=_numpy_globals(), required=_REQUIRED)
    schema.check(path, state, {ORDER_SEED: (schema.is_seed, "a whole number")})
    _require_states(path, state)
    return state


def restore_rng(checkpoint: str, rank: int = 0, size: int = 1) -> None:
    """Sets the generators to the states of process `rank` in `checkpoint`, if it has them."""
    if (state := read_rng(checkpoint, rank, size)) is not None:
        set_rng(state)


_REQUIRED = ["python", "numpy", "cpu"]


def files_of(checkpoint: str) -> list[str]:
    """Returns the files of the generators, one for each process that wrote `checkpoint`."""
    several = sorted(name for name in os.listdir(checkpoint) if re.fullmatch(r"rng_state_\d+\.pth", name))
    return several or [FILE]


def _file_for(checkpoint: str, rank: int, size: int) -> str:
    files = files_of(checkpoint)
    made_by = len(files)
    if files == [FILE]:
        if size > 1 and rank == 0 and os.path.isfile(os.path.join(checkpoint, FILE)):
            logger.warning(_OTHER_NUMBER, checkpoint, "1 process", size)
        return FILE
    if made_by != size and rank == 0:
        logger.warning(_OTHER_NUMBER, checkpoint, f"{made_by} processes", size)
    return f"rng_state_{rank % made_by}.pth"


_OTHER_NUMBER = (
    "%s was written by %s, and this run has %d: weights, optimizer and position in the epoch are restored, but "
    "random numbers such as those of dropout differ from the original run."
)


def _require_states(path: str, state: dict[str, Any]) -> None:
    """Raises MisconfigurationException for an invalid state before training starts.

    They say so only when they are set, so they are, and set back: this costs less than a millisecond.
    """
    before = rng_state()
    try:
        for each in (state, *(state[name] for name in NESTED if state.get(name) is not None)):
            _require_place(each)
            set_rng(each)
    except Exception as error:
        raise damaged(path, ValueError(f"a generator rejects its state: {error}")) from error
    finally:
        set_rng(before)


def _require_place(state: dict[str, Any]) -> None:
    """Raises ValueError for a state that Python or NumPy accepts now and fails with later."""
    following = state["python"][2]
    if not (following is None or isinstance(following, float)):
        raise ValueError("Python's next number is none")
    name, keys, place = state["numpy"][:3]
    if (name, len(keys)) != ("MT19937", _NUMPY_KEYS) or not 0 <= place <= _NUMPY_KEYS:
        raise ValueError("NumPy's has no place among its numbers")  # it would read past them


_NUMPY_KEYS = 624


def _numpy_globals() -> list[Any]:
    """Returns the constructors, of plain data, that rebuild the array of NumPy's generator."""
    from numpy._core import multiarray

    return [multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
