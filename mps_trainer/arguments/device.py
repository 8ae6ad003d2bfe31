"""Processes and the device of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..devices.accelerators import ACCELERATORS
from .accelerator_config import accelerator_config
from .fields import NotSupported, option
from .readers import read_accelerator, read_any, read_device_request


@dataclass
class ParallelArguments:
    """Several processes."""

    accelerator_config: dict | str | None = option(
        None,
        "Settings of batching and sharding of data: a dictionary, JSON, or the path of a JSON file.",
        read=accelerator_config,
    )
    parallelism_config: Any = option(
        None,
        "Accelerate's ParallelismConfig.",
        refused=NotSupported(
            "it spreads a model over several devices in a way that this Trainer does not support",
            "Leave it out; fsdp=True shards the model over several processes",
        ),
    )
    ddp_find_unused_parameters: bool | None = option(
        None, "DDP: find unused parameters. [true, except with activation checkpointing]"
    )
    ddp_bucket_cap_mb: int | None = option(None, "DDP: bucket size for gradients in MB. [torch's]", ge=1)
    ddp_broadcast_buffers: bool | None = option(None, "DDP: broadcast buffers before each forward pass. [torch's]")
    ddp_static_graph: bool | None = option(None, "DDP: treat the graph as static. [torch's]")
    fsdp: str | None = option(  # see sharding.py
        None,
        "Shard parameters, gradients and optimizer state over the processes: true.",
        nargs="?",
        const=True,
        read=read_any,
    )
    fsdp_config: dict[str, Any] | str | None = option(
        None, "FSDP settings: a dictionary, JSON, or the path of a JSON file.", read=read_any
    )
    deepspeed: dict | str | None = option(
        None,
        "DeepSpeed settings, as JSON or the path of a JSON file.",
        read=read_any,
        refused=NotSupported(
            "DeepSpeed shards a model over several cuda processes, and this Trainer uses PyTorch's own FSDP2 for that",
            "Use fsdp=True with several processes, or activation_checkpointing on one device",
        ),
    )


@dataclass
class DeviceArguments:
    """Device and processes."""

    use_cpu: bool = option(False, "Train on the CPU, even if the machine has a GPU.")
    accelerator: str = option(
        "auto",
        "Device to train on. A named device that cannot run is an error.",
        choices=["auto", *ACCELERATORS, "gpu"],
        kw_only=True,
        read=read_accelerator,
    )
    devices: str = option("auto", "Number of devices, or auto. mps has one.", kw_only=True, read=read_device_request)
    memory_guard: bool = option(
        True, "On mps, limit the memory of the run and release unused memory that torch keeps.", kw_only=True
    )
    memory_fraction: float | None = option(  # torch takes these
        None,
        "Memory limit as a fraction of the maximum that Metal recommends; 0 means no limit. [1.0]",
        kw_only=True,
        ge=0,
        le=2,
    )
    keep_awake: bool = option(
        True,
        "On mps, keep the Mac awake while it trains; closing the lid still puts it to sleep.",
        kw_only=True,
    )
    ddp_backend: str | None = option(
        None,
        "Backend of torch.distributed for several processes; mlx on mps, where no other works.",
        choices=sorted({backend for kind in ACCELERATORS.values() for backend in kind.backends}),
    )
    ddp_timeout: int = option(  # timedelta ends at 10**14
        1800, "Timeout in seconds for collective operations.", ge=1, le=10**9
    )
    local_rank: int = option(-1, "Set by launchers; the rank is read from torchrun's environment.")
