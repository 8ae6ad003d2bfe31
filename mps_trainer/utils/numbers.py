"""Recognises numbers, and makes plain numbers of arrays and tensors of one element."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_LARGEST = 1e300  # an int of Python has no bound, and float() has


def is_number(value: Any) -> bool:
    """Returns True for a number that float() takes, nan and infinity among them."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST


def plain(value: Any) -> Any:
    """Returns `value` with Python's numbers for arrays and tensors of one element, also in lists and dictionaries."""
    try:
        return _plain(value)
    except (RecursionError, RuntimeError, ValueError):  # a list in itself, a tensor on the meta device
        return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else [_plain(each) for each in value]
    if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
        return value.item()
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
