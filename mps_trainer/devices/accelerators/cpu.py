"""The CPU, where any number of processes may train and each counts as a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import MisconfigurationException
from ..facts import MachineFacts
from .base import Accelerator, Devices, Obstacle, no_devices, read_devices, torch_missing

if TYPE_CHECKING:
    import torch

# A step of MiniLM with 16 texts of 64 tokens took, on one thread (torch 2.13, an AMD EPYC with AVX512-BF16,
# 2026-11-23), 1.07 s in float32 and 0.60 s under autocast to bfloat16. `ONEDNN_MAX_CPU_ISA` hides instructions: then
# bfloat16 took 2.28 s instead of 1.28 s (AVX-512 without BF16), and 12.8 s instead of 1.16 s (AVX2).
SLOW_BFLOAT16 = (
    "this processor has no instructions for bfloat16, and takes 1.8 times as long as in float32 with AVX-512, "
    "11 times with AVX2"
)


class CPUAccelerator(Accelerator):
    """The CPU: "devices" counts processes, as in Lightning."""

    kind = "cpu"
    label = "CPU"
    backends = ("gloo", "mpi", "ccl", "mlx")
    formats = ("fp32", "fp16", "bf16", "fp64")
    indexed = False

    @classmethod
    def why_not(cls, facts: MachineFacts) -> Obstacle | None:
        return torch_missing(facts) if facts.torch_version is None else None

    @classmethod
    def precision_advice(cls, cpu_bfloat16: bool | None) -> str | None:
        if cpu_bfloat16 is None:
            return None
        if cpu_bfloat16:
            return "bf16=True is faster: this processor has instructions for bfloat16, and takes 0.6 of the time"
        return f"float32 is faster: {SLOW_BFLOAT16}"

    @classmethod
    def choose_devices(cls, devices: Devices, count: int = 1) -> Sequence[int]:
        """Returns an entry for each process asked for. Raises MisconfigurationException for a list of indices."""
        asked = read_devices(devices)
        if isinstance(asked, list):
            raise MisconfigurationException(
                f"devices={devices!r} names GPUs by index, and the device here is the CPU. "
                f"Leave devices at 'auto', or choose an accelerator that has indices."
            )
        if asked == 0:
            raise no_devices(cls.kind, devices)
        return range(1 if asked in ("auto", -1) else int(asked))

    @classmethod
    def parse_devices(cls, devices: Devices) -> int:
        """Returns the number of processes asked for; "auto" is 1. Needs no look at the machine."""
        return len(cls.choose_devices(devices))

    @classmethod
    def get_parallel_devices(cls, devices: Devices) -> list[torch.device]:
        """Returns the CPU, once for each process asked for."""
        import torch

        return [torch.device("cpu")] * cls.parse_devices(devices)

    @classmethod
    def torch_module(cls) -> None:
        """Returns None: the CPU has no memory to release and no generator besides torch's own."""
