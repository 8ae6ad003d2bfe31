"""Keeps a replica of the model in each process and averages gradients with DistributedDataParallel."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .sharded import is_sharded

if TYPE_CHECKING:
    from ..training_args import TrainingArguments


def replicated(model: nn.Module, args: TrainingArguments) -> DistributedDataParallel:
    """Returns `model` as a DDP replica. All replicas start with the weights of the first process."""
    settings: dict[str, Any] = {
        "find_unused_parameters": _finds_unused(model, args),
        "bucket_cap_mb": args.ddp_bucket_cap_mb,
        "broadcast_buffers": args.ddp_broadcast_buffers,
        "static_graph": args.ddp_static_graph,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    replica: Any = DistributedDataParallel(model, gradient_as_bucket_view=True, **given)
    replica.trained = [(each, each.requires_grad) for each in model.parameters()]
    return replica


def is_current(model: Any) -> bool:
    """Returns False for a replica that leaves out gradients: its model trains other parameters than when it was made.

    It would not exchange the gradients of parameters that were frozen then, and each process would have other weights.
    """
    of_replica = getattr(model, "trained", ()) if isinstance(model, DistributedDataParallel) else ()
    return all(parameter.requires_grad == was for parameter, was in of_replica)


def _finds_unused(model: nn.Module, args: TrainingArguments) -> bool:
    """Returns the arguments' choice; by default True, unless activation checkpointing, which conflicts, is on."""
    if args.ddp_find_unused_parameters is not None:
        return args.ddp_find_unused_parameters
    name = "is_activation_checkpointing"  # releases of transformers differ in the name
    recomputes = getattr(model, name if hasattr(type(model), name) else "is_gradient_checkpointing", False)
    return not (args.gradient_checkpointing or recomputes)


def inside(model: Any) -> Any:
    """Returns the model inside a replica, or `model` itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def no_sync(model: nn.Module, wanted: bool) -> contextlib.AbstractContextManager:
    """Disables the gradient all-reduce inside if `wanted`, because more batches are accumulated."""
    if is_sharded(model):
        model.set_requires_gradient_sync(not wanted)  # type: ignore[operator]
    return model.no_sync() if wanted and isinstance(model, DistributedDataParallel) else contextlib.nullcontext()
