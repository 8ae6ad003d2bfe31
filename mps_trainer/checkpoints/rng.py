"""Gets and sets the states of all random number generators of this process, of every kind of device."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from ..devices.accelerators import ACCELERATORS

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


def require_valid(state: dict[str, Any]) -> None:
    """Raises an error for states that a generator rejects, now or in a later draw.

    They say so only when they are set, so they are, and set back: this costs less than a millisecond.
    """
    before = rng_state()
    try:
        for each in (state, *(state[name] for name in (BEFORE_EPOCH, BEFORE_WAITING) if state.get(name) is not None)):
            following, (name, keys, place) = each["python"][2], each["numpy"][:3]
            if not (following is None or isinstance(following, float)):
                raise ValueError("Python's next number is not a number")
            if (name, len(keys)) != ("MT19937", 624) or not 0 <= place <= 624:
                raise ValueError("NumPy's has no place among its numbers")  # it would read past them
            set_rng(each)
        torch.Generator().manual_seed(state.get(ORDER_SEED, 0))
    finally:
        set_rng(before)


def numpy_globals() -> list[Any]:
    """Returns the constructors, of plain data, that rebuild the array of NumPy's generator."""
    from numpy._core import multiarray

    return [multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
