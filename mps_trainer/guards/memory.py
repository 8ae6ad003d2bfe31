"""The memory of the device: whether it ran out, and giving back what is not used."""

from __future__ import annotations

import torch

# How torch's allocators say it. Those of cuda and xpu have a type of their own besides.
_MESSAGES = ("out of memory", "DefaultCPUAllocator: can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED")


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device, or the host, has too little memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def free_unused(device: torch.device) -> None:
    """Gives memory that no tensor uses back to the system."""
    module = getattr(torch, device.type, None)
    # the graphs are those that mps has compiled; not in every torch
    for name in ("empty_cache", "clear_graph_cache"):
        if callable(give_back := getattr(module, name, None)):
            give_back()
