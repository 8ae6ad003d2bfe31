"""The state of every random number generator, kept in a checkpoint."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch

from .files import read_tensors

FILE = "rng_state.pth"


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
