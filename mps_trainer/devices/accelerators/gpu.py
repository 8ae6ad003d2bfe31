"""CUDA and XPU devices: torch has a module with the same functions for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Accelerator
from .host import host_stats

if TYPE_CHECKING:
    import torch


class GPUAccelerator(Accelerator):
    """One process trains on one of them; torchrun starts a process for each."""

    @classmethod
    def get_device_stats(cls, device: Any) -> dict[str, Any]:
        """Returns torch's memory_stats, the bytes in live tensors, those that torch holds, and all there are.

        All of them are kept by the host: nothing waits for the device.
        """
        import torch

        module = torch.get_device_module(cls.kind)
        return {
            **module.memory_stats(device),
            f"{cls.kind}_allocated_bytes": module.memory_allocated(device),
            f"{cls.kind}_reserved_bytes": module.memory_reserved(device),
            f"{cls.kind}_total_bytes": module.get_device_properties(device).total_memory,
            **host_stats(),
        }

    @classmethod
    def setup_device(cls, device: torch.device) -> None:
        import torch

        super().setup_device(device)
        torch.get_device_module(cls.kind).set_device(device)
