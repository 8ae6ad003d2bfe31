"""A batch, moved to the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def to_device(data: Any, device: torch.device) -> Any:
    """`data` with every tensor in it on `device`; dictionaries, lists and tuples keep their type.

    On mps, which has no float64, such tensors become float32: they are what NumPy makes of Python's floats.
    """
    if isinstance(data, torch.Tensor):
        dtype = torch.float32 if device.type == "mps" and data.dtype == torch.float64 else data.dtype
        return data.to(device=device, dtype=dtype, non_blocking=device.type == "cuda")
    if isinstance(data, Mapping):
        return type(data)({key: to_device(value, device) for key, value in data.items()})  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(to_device(value, device) for value in data)
    return data
