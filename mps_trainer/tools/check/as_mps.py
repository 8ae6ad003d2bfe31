"""Makes autocast, generators and `torch.mps` accept mps in a process that has only the CPU.

Under a trace, tensors on the device answer that they are on mps, so models and torch's own Python take their branches
for mps and pass the name on. `HostCalls` maps it in calls that take or return tensors. The functions here do neither.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ...utils.attributes import attributes_replaced

CPU = torch.device("cpu")
MPS = torch.device("mps", 0)  # tensors on mps have an index, and devices are equal only if both or none have one

_AUTOCAST = ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")


def cpu_for_mps(device: Any) -> Any:
    """Returns the CPU for a device that is mps, and everything else as it is."""
    is_mps = isinstance(device, torch.device) and device.type == "mps"
    return CPU if is_mps or (isinstance(device, str) and device.partition(":")[0] == "mps") else device


def names_of_mps_accepted(wait: Callable[[str], None]) -> AbstractContextManager[None]:
    """Makes autocast, generators and `torch.mps` accept mps inside, in the whole process.

    Args:
        wait: called with the name of a function that waits for the device.
    """
    importlib.import_module("torch._dynamo")  # on import it keeps the functions that are replaced here
    changes: list[tuple[Any, str, Any]] = [(torch, name, _on_cpu(getattr(torch, name))) for name in _AUTOCAST]
    changes.append((torch.autocast, "__init__", _with_cpu_autocast(torch.autocast.__init__)))
    changes += [(torch, "Generator", _Generator), (torch, "Event", _Event)]
    changes.append((torch.backends.mps, "is_available", lambda: True))
    in_torch_mps: dict[str, Callable] = {
        "synchronize": lambda: wait("torch.mps.synchronize()"),
        "empty_cache": lambda: None,
        "current_allocated_memory": lambda: 0,
        "driver_allocated_memory": lambda: 0,
        "get_rng_state": lambda device="mps": torch.get_rng_state(),
        "set_rng_state": lambda state, device="mps": torch.set_rng_state(state),
    }
    changes += [(torch.mps, name, function) for name, function in in_torch_mps.items()]
    if (caching := sys.modules.get("transformers.pytorch_utils")) is not None:
        # It keeps position embeddings by device for all models, except under the compiler. Those of a trace, which are
        # in host memory, must not be used after it.
        changes.append((caching, "is_torchdynamo_compiling", lambda: True))
    return attributes_replaced(changes)


class _Event:
    """Stands for torch.Event: what it is recorded after is done at once on the CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


def _on_cpu(function: Callable) -> Callable:
    def call(device_type: Any = CPU.type, *args: Any) -> Any:
        device_type = cpu_for_mps(device_type)
        return function(device_type.type if isinstance(device_type, torch.device) else device_type, *args)

    return call


def _with_cpu_autocast(make: Callable) -> Callable:
    def init(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        device = cpu_for_mps(device_type)
        make(self, device.type if device is CPU else device, *args, **kwargs)

    return init


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _RealGenerator)


_RealGenerator = torch.Generator


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, cpu_for_mps(device))  # type: ignore[call-arg]
