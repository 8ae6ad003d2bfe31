"""Tracks which tensors would be on the device, in a process where all of them are in host memory.

A read of a tensor that stays on the host waits for nothing, and an operator on one needs no kernel for mps: batches
while they are put together, counters of the optimizer, whatever was read back. So every tensor that the trace meets
is noted as one or the other, by its storage, which views of it share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary


class Residency:
    """Records which storages are on the device. `default` is the answer for unknown ones.

    Args:
        default: True, False, or None: they count as being on the host, but may have been moved before.
    """

    def __init__(self, default: bool | None) -> None:
        self.default = default
        self._known = WeakIdKeyDictionary()  # by storage

    def on_device(self, tensor: torch.Tensor) -> bool:
        storage = storage_of(tensor)
        # Those without a storage, such as sparse ones, were made by operators from tensors of the step.
        return storage is None or bool(self._known.get(storage, self.default))

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Returns True if the tensor is on the host for certain."""
        storage = storage_of(tensor)
        return storage is not None and self._known.get(storage, self.default) is False

    def update(self, other: Residency) -> None:
        """Records what `other` has recorded."""
        self._known.update(other._known)

    def put(self, tensors: Iterable[torch.Tensor], on_device: bool) -> None:
        """Records that `tensors` are on the device, or that they are not."""
        for tensor in tensors:
            if (storage := storage_of(tensor)) is not None:
                self._known[storage] = on_device


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Returns the storage, which views of the tensor share; None for a tensor that has none."""
    try:
        return tensor.untyped_storage()
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
