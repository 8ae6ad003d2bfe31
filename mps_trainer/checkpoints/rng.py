"""Reads, saves and restores the states of all random number generators of this process, of every kind of device."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from ..devices.accelerators import ACCELERATORS
from .storage import schema
from .storage.files import damaged, read_tensors

logger = logging.getLogger(__name__)

FILE = "rng_state.pth"
# Entries beside the generators' states, which `DataRngState` saves; transformers ignores them.
ORDER_SEED = "order_seed"  # of the loader's order
BEFORE_EPOCH = "before_epoch"  # states before the epoch drew its order and its workers' seed
BEFORE_WAITING = "before_waiting"  # states before the batch ahead was loaded; None if no batch is loaded ahead


def rng_state() -> dict[str, Any]:
    """Returns the states of the generators of Python, NumPy, torch and its devices, in transformers' format."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
        **{kind: module.get_rng_state() for kind, module in _device_modules()},
    }


def set_rng(state: dict[str, Any]) -> None:
    """Sets the generators that this machine has to `state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    for kind, module in _device_modules():
        if kind in state:
            own = state[kind]
            if isinstance(own, list):  # several processes of transformers save the states of all devices
                own = own[module.current_device() % len(own)]
            module.set_rng_state(own)


def _device_modules() -> Iterator[tuple[str, Any]]:
    for kind, accelerator in ACCELERATORS.items():
        if (module := accelerator.torch_module()) is not None:
            yield kind, module


class LoadsRng(Protocol):
    """A Trainer, for its method that restores the generators."""

    def _load_rng_state(self, checkpoint: str | None) -> None: ...


class ResumedRng:
    """Restores the generators from the checkpoint that a run resumes from, once.

    The moment is when the loader stands where it stood at the checkpoint: at the begin or the end of an epoch, or once
    the batches of the epoch that the run has trained on are loaded again. Until then, loading draws from the states
    that it drew from in the first run (see `DataRngState`).
    """

    def __init__(self, trainer: LoadsRng) -> None:
        self._trainer = trainer
        self._folder = ""
        self._states: dict[str, Any] | None = None
        self._is_as_saved = True

    @property
    def is_pending(self) -> bool:
        """Returns True until the generators are restored."""
        return self._states is not None

    def resume_from(self, folder: str, states: dict[str, Any] | None) -> None:
        """Sets the states to restore, read from the checkpoint `folder`; None for a checkpoint without them."""
        self._folder, self._states = folder, states

    def restore(self) -> None:
        """Restores the generators from the checkpoint, once."""
        if self._states is not None and self._is_as_saved:
            self._trainer._load_rng_state(self._folder)
        elif self._states is not None:
            set_rng(self._states)
        self._states = None

    @contextlib.contextmanager
    def drawing_ahead(self) -> Iterator[None]:
        """Restores the generators inside. Draws inside advance the states that are restored later."""
        if self._states is None:
            yield
            return
        set_rng(self._states)
        yield
        self._states = {**self._states, **rng_state()}
        self._is_as_saved = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the states before the next draw."""
        return rng_state() if self._states is None else self._states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the generators."""
        set_rng(state)


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
        for each in (state, *(state[name] for name in (BEFORE_EPOCH, BEFORE_WAITING) if state.get(name) is not None)):
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
