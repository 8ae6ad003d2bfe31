"""How several processes share the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .fields import option


@dataclass
class ParallelArguments:
    accelerator_config: dict | str | None = option(
        None, "How batches are made and shared out: a dictionary, JSON, or the path of a JSON file."
    )
    parallelism_config: Any = option(None, "Accelerate's ParallelismConfig.")
    ddp_find_unused_parameters: bool | None = option(
        None, "DDP: look for parameters without gradient. [true, but with activation checkpointing]"
    )
    ddp_bucket_cap_mb: int | None = option(None, "DDP: size of a bucket of gradients in MB. [torch's]", ge=1)
    ddp_broadcast_buffers: bool | None = option(None, "DDP: share the buffers before each forward pass. [torch's]")
    ddp_static_graph: bool | None = option(None, "DDP: the graph is the same in all steps. [torch's]")
    fsdp: str | None = option(
        None, "Shard parameters, gradients and optimizer over the processes: true.", nargs="?", const=True
    )
    fsdp_config: dict[str, Any] | str | None = option(
        None, "Settings of fsdp: a dictionary, JSON, or the path of a JSON file."
    )
    deepspeed: dict | str | None = option(None, "Settings of DeepSpeed, as JSON or the path of a JSON file.")
