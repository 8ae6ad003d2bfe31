"""Which device, and how several processes work together."""

from __future__ import annotations

from dataclasses import dataclass

from ..devices.resolver import ACCEPTED
from .fields import option


@dataclass
class DeviceArguments:
    use_cpu: bool = option(False, "Train on the CPU whatever else there is.")
    accelerator: str = option(
        "auto", "Device to train on. One that is named and cannot run is an error.", choices=list(ACCEPTED)
    )
    devices: str = option("auto", "How many devices, as a number, or auto. mps has one.")
    memory_guard: bool = option(
        True, "On mps, limit the memory of the run and give back what torch keeps of it without need."
    )
    memory_fraction: float | None = option(
        None,
        "The guard's limit as a share of the maximum that Metal recommends; 0 is no limit. [1.0]",
        ge=0,
        le=2,  # as torch takes it
    )
    ddp_backend: str | None = option(
        None,
        "Backend of torch.distributed for several processes. Not with mps.",
        choices=["nccl", "gloo", "mpi", "ccl", "xccl"],
    )
    ddp_timeout: int = option(
        1800,
        "Seconds that a process waits for the others.",
        ge=1,
        le=10**9,  # timedelta ends at 10**14
    )
    local_rank: int = option(-1, "Set by launchers; the rank itself is read from torchrun's environment.")
