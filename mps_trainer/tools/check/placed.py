"""Follows which tensors a script places on a device before its step is traced.

A script takes the CPU where it finds no mps, and `.to("cpu")` leaves no sign in a tensor that is there already. On a
Mac, whatever the script places is on mps, and so is what it computes from that.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...utils.nested import tensors_in
from .reads import target_of
from .residency import Residency


class PlacedTensors(TorchFunctionMode):
    """Marks tensors that are moved by `.to()` or made with `device=`, and those computed from them, in `residency`."""

    def __init__(self) -> None:
        super().__init__()
        self.residency = Residency(default=None)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        names_device = kwargs.get("device") is not None
        if func is Tensor.to:
            names_device = target_of(args[1:], kwargs) is not None
        if names_device or any(self.residency.on_device(tensor) for tensor in tensors_in((args, kwargs))):
            self.residency.put(tensors_in(result), True)
        return result
