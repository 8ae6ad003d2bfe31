"""Tracks which tensors would be on the device, in a process where all of them are in host memory.

A read of a tensor that stays on the host waits for nothing, and an operator on one needs no kernel for mps: batches
while they are put together, counters of the optimizer, whatever was read back. So every tensor that the trace meets
is noted as one or the other, by its storage, which views of it share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

# Dead storages are forgotten when as many as this were noted since the last time.
_SWEEP_EVERY = 20_000


class Residency:
    """Records which storages are on the device. `default` is the answer for unknown ones."""

    def __init__(self, default: bool) -> None:
        self.default = default
        # By address. The weak reference keeps the address from being given to another storage.
        self._known: dict[int, tuple[StorageWeakRef, bool]] = {}
        self._until_sweep = _SWEEP_EVERY

    def on_device(self, tensor: torch.Tensor) -> bool:
        key = storage_key(tensor)
        if key is None:
            return True  # sparse ones and the like: made by operators from tensors of the step
        known = self._known.get(key)
        return self.default if known is None else known[1]

    def put(self, tensors: Iterable[torch.Tensor], on_device: bool) -> None:
        """Records that `tensors` are on the device, or that they are not."""
        for tensor in tensors:
            key = storage_key(tensor)
            if key is None:
                continue
            if (known := self._known.get(key)) is not None:
                self._known[key] = (known[0], on_device)
                continue
            self._known[key] = (StorageWeakRef(tensor.untyped_storage()), on_device)
            self._until_sweep -= 1
            if self._until_sweep <= 0:
                self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
                self._until_sweep = _SWEEP_EVERY


def storage_key(tensor: torch.Tensor) -> int | None:
    """Returns the address of the tensor's storage; None for a tensor that has none."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in nested dictionaries, lists, tuples and modules, each with its path."""
    prefix = f"{name}." if name else ""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, torch.nn.Module):
        for key, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield prefix + key, tensor
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from named_tensors(entry, f"{prefix}{key}")
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(value):
            yield from named_tensors(entry, f"{prefix}{i}")


def tensors_in(*values: Any) -> list[torch.Tensor]:
    return [tensor for _, tensor in named_tensors(values)]
