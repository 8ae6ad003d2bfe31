"""CUDA and XPU devices: torch has a module with the same functions for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..facts import MachineFacts
from .base import Accelerator, Obstacle, torch_missing

if TYPE_CHECKING:
    import torch


class GPUAccelerator(Accelerator):
    """One process trains on one of them; torchrun starts a process for each.

    `facts` have `{kind}_built`, whether torch is a build for this kind, and `{kind}_count`, the number that torch
    finds.
    """

    not_on_macos: ClassVar[Obstacle]

    @classmethod
    def none_found(cls, facts: MachineFacts) -> Obstacle:
        """Returns the obstacle for a torch that is no build for such a device, or finds none."""
        raise NotImplementedError

    @classmethod
    def why_not(cls, facts: MachineFacts) -> Obstacle | None:
        if facts.system == "Darwin":
            return cls.not_on_macos
        if facts.torch_version is None:
            return torch_missing(facts)
        is_found = getattr(facts, f"{cls.kind}_built") and getattr(facts, f"{cls.kind}_count")
        return None if is_found else cls.none_found(facts)

    @classmethod
    def hidden(cls, facts: MachineFacts, there: bool = False) -> Obstacle | None:
        """Returns the obstacle that the variable which chooses among the devices is, or None if it is not set."""
        value = facts.environment.get(cls.visible_variable)
        if value is None:
            return None
        cause = f"{cls.visible_variable}={value!r} leaves no GPU visible"
        return Obstacle(cause, f"unset {cls.visible_variable}", there, cls.kind)

    @classmethod
    def count(cls, facts: MachineFacts) -> int:
        return 0 if cls.why_not(facts) else getattr(facts, f"{cls.kind}_count")

    @classmethod
    def memory(cls, device: Any) -> dict[str, int]:
        import torch

        module = torch.get_device_module(cls.kind)
        return {
            f"{cls.kind}_allocated_bytes": module.memory_allocated(device),
            f"{cls.kind}_reserved_bytes": module.memory_reserved(device),
            f"{cls.kind}_total_bytes": module.get_device_properties(device).total_memory,
        }

    @classmethod
    def get_device_stats(cls, device: Any = None) -> dict[str, Any]:
        """Returns torch's memory_stats as well."""
        import torch

        return {**torch.get_device_module(cls.kind).memory_stats(device), **super().get_device_stats(device)}

    @classmethod
    def setup_device(cls, device: torch.device) -> None:
        import torch

        super().setup_device(device)
        torch.get_device_module(cls.kind).set_device(device)
