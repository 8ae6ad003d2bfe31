"""Moves a batch to the device in one copy."""

from __future__ import annotations

from typing import Any

import torch

from ..nested import map_tensors, tensors_in

_ALIGNED = 16  # bytes: where a tensor begins in the buffer that holds all of them; any number format may begin there
_HELD = 2**25  # bytes of host memory that copies in flight may hold


def to_device(data: Any, device: torch.device) -> Any:
    """Returns `data` with every tensor in it on `device`; dictionaries, lists and tuples keep their type.

    On mps, which has no float64, such tensors become float32: they are what NumPy makes of Python's floats.
    """
    return map_tensors(data, lambda tensor: _moved(tensor, device))


class BatchTransfer:
    """Moves batches to `device`: the tensors of one that are in host memory in a single copy.

    Each copy on its own costs its launch, and on mps it waits for all that is queued. The copy here does not wait: its
    host memory is kept until a later copy, which waits, has shown that it was made. Over CUDA it comes from pinned
    memory, so that it runs beside the computation.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._held: list[torch.Tensor] = []
        self._held_bytes = 0

    def __call__(self, data: Any) -> Any:
        """Returns `data` on the device; see `to_device`."""
        if self.device.type == "cpu":
            return to_device(data, self.device)
        packable = [tensor for tensor in tensors_in(data) if _packs(tensor)]
        if len(packable) < 2 and self.device.type != "mps":
            return to_device(data, self.device)
        moved = dict(zip(map(id, packable), self._move(packable), strict=True)) if packable else {}

        def replace(tensor: torch.Tensor) -> torch.Tensor:
            return moved[id(tensor)] if id(tensor) in moved else _moved(tensor, self.device)

        return map_tensors(data, replace)

    def _move(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copies `tensors` to the device in one buffer and returns views of it."""
        tensors = [tensor.to(_dtype_on(self.device, tensor)) for tensor in tensors]
        ends, size = [], 0
        for tensor in tensors:
            size = -(-size // _ALIGNED) * _ALIGNED + tensor.numel() * tensor.element_size()
            ends.append(size)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        places = [(end - t.numel() * t.element_size(), end, t) for end, t in zip(ends, tensors, strict=True)]
        for start, end, tensor in places:
            host[start:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        buffer = self._copy(host)
        # .data: autograd would take a change of one part in place for a change of all
        return [buffer[start:end].view(tensor.dtype).view(tensor.shape).data for start, end, tensor in places]

    def _copy(self, host: torch.Tensor) -> torch.Tensor:
        if self.device.type != "mps":  # torch keeps pinned memory until its copy is made
            return host.to(self.device, non_blocking=self.device.type == "cuda")
        waits = bool(self._held) and self._held_bytes + host.nbytes > _HELD
        buffer = host.to(self.device, non_blocking=not waits)
        if waits:  # the queue is worked off in order: the copies before this one have been made as well
            self._held, self._held_bytes = [], 0
        else:
            self._held.append(host)
            self._held_bytes += host.nbytes
        return buffer


def _packs(tensor: torch.Tensor) -> bool:
    """Returns True if a part of a buffer can replace `tensor`."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_complex()
    )


def _dtype_on(device: torch.device, tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if device.type == "mps" and tensor.dtype == torch.float64 else tensor.dtype


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device=device, dtype=_dtype_on(device, tensor), non_blocking=device.type == "cuda")
