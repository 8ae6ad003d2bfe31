"""The state of every random number generator, kept in a checkpoint."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..data.loader import OneAhead, order_of
from .files import read_tensors

FILE = "rng_state.pth"
# What that file has beside the states; transformers reads past both.
AHEAD = "before_batch_ahead"
ORDER_SEED = "order_seed"


def rng_state() -> dict[str, Any]:
    """States of Python's, NumPy's and torch's generators, in the form that transformers keeps them."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def loading_state(loader: Any, batches: Any) -> dict[str, Any]:
    """What a checkpoint keeps beside `rng_state` of how `batches`, an epoch of `loader`, came about.

    The seed of the order, if it has one; and the state when the batch ahead was loaded: None in its place if no batch
    is loaded ahead, nothing if one is and the state is not known.
    """
    order = order_of(loader)
    kept: dict[str, Any] = {} if order is None else {ORDER_SEED: order.seed}
    if not isinstance(batches, OneAhead):
        kept[AHEAD] = None
    elif batches.before_waiting is not None:
        kept[AHEAD] = batches.before_waiting
    return kept


def resume_order(loader: Any, saved: dict[str, Any] | None) -> None:
    """Gives the epochs of `loader` the order they had, whatever torch was seeded with since."""
    order = order_of(loader)
    if order is not None and saved is not None and ORDER_SEED in saved:
        order.seed = saved[ORDER_SEED]


def resume_draws(batches: Any, saved: dict[str, Any], go_on: Callable[[], None]) -> None:
    """Begins the rest of an epoch in a resumed run, so that its batches make the draws they made before.

    Args:
        saved: the state in the checkpoint, with what `loading_state` gave.
        go_on: sets the generators to it. Not called for a checkpoint that says nothing of batches loaded ahead, as
            those of transformers: there, the caller does so after the first update's batches are loaded.
    """
    if AHEAD not in saved:
        return
    if isinstance(batches, OneAhead) and saved[AHEAD] is not None:
        batches.start(before=lambda: set_rng(saved[AHEAD]), after=go_on)
    else:
        go_on()


def read_rng(checkpoint: str) -> dict[str, Any] | None:
    """What `rng_state` gave when `checkpoint` was made; None for one without such a file.

    Raises:
        MisconfigurationException: for a damaged file.
    """
    path = os.path.join(checkpoint, FILE)
    if not os.path.isfile(path):
        return None
    return read_tensors(path, allowed=_numpy_globals(), required=["python", "numpy", "cpu"])


def set_rng(state: dict[str, Any]) -> None:
    """Sets the generators to `state`, as far as this machine has them."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


def _numpy_globals() -> list[Any]:
    """What NumPy needs to rebuild its generator's array: constructors of plain data."""
    from numpy._core import multiarray

    return [multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
