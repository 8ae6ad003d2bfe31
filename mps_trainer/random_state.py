"""Reads and sets the states of all random number generators of this process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .devices.accelerators import ACCELERATORS


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
