"""Several processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .fields import option


@dataclass
class ParallelArguments:
    accelerator_config: dict | str | None = option(
        None, "Settings of batching and sharding of data: a dictionary, JSON, or the path of a JSON file."
    )
    parallelism_config: Any = option(None, "Accelerate's ParallelismConfig.")
    ddp_find_unused_parameters: bool | None = option(
        None, "DDP: find unused parameters. [true, except with activation checkpointing]"
    )
    ddp_bucket_cap_mb: int | None = option(None, "DDP: bucket size for gradients in MB. [torch's]", ge=1)
    ddp_broadcast_buffers: bool | None = option(None, "DDP: broadcast buffers before each forward pass. [torch's]")
    ddp_static_graph: bool | None = option(None, "DDP: treat the graph as static. [torch's]")
    fsdp: str | None = option(
        None, "Shard parameters, gradients and optimizer state over the processes: true.", nargs="?", const=True
    )
    fsdp_config: dict[str, Any] | str | None = option(
        None, "FSDP settings: a dictionary, JSON, or the path of a JSON file."
    )
    deepspeed: dict | str | None = option(None, "DeepSpeed settings, as JSON or the path of a JSON file.")
