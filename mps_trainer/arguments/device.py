"""Which device, and how several processes work together."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import option


@dataclass
class DeviceArguments:
    use_cpu: bool = option(False, "Train on the CPU whatever else there is.")
    accelerator: str = option(
        "auto", "Device to train on: auto, mps, cuda, xpu, gpu or cpu. One that is named and cannot run is an error."
    )
    devices: str = option("auto", "How many devices, as a number, or auto. mps has one.")
    ddp_backend: str | None = option(
        None, "Backend of torch.distributed for several processes: nccl, gloo, mpi, ccl or xccl. Not with mps."
    )
    ddp_timeout: int = option(1800, "Seconds that a process waits for the others.")
    local_rank: int = option(-1, "Set by launchers; the rank itself is read from torchrun's environment.")
