"""Device and processes."""

from __future__ import annotations

from dataclasses import dataclass

from ..devices.resolver import ACCEPTED
from .fields import option


@dataclass
class DeviceArguments:
    use_cpu: bool = option(False, "Train on the CPU, even if the machine has a GPU.")
    accelerator: str = option(
        "auto", "Device to train on. A named device that cannot run is an error.", choices=list(ACCEPTED), kw_only=True
    )
    devices: str = option("auto", "Number of devices, or auto. mps has one.", kw_only=True)
    memory_guard: bool = option(
        True, "On mps, limit the memory of the run and release unused memory that torch keeps.", kw_only=True
    )
    memory_fraction: float | None = option(
        None,
        "Memory limit as a fraction of the maximum that Metal recommends; 0 means no limit. [1.0]",
        ge=0,
        le=2,  # as torch takes it
        kw_only=True,
    )
    ddp_backend: str | None = option(
        None,
        "Backend of torch.distributed for several processes. Not available with mps.",
        choices=["nccl", "gloo", "mpi", "ccl", "xccl"],
    )
    ddp_timeout: int = option(
        1800,
        "Timeout in seconds for collective operations.",
        ge=1,
        le=10**9,  # timedelta ends at 10**14
    )
    local_rank: int = option(-1, "Set by launchers; the rank is read from torchrun's environment.")
