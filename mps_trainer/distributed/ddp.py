"""Keeps a replica of the model in each process and averages gradients with DistributedDataParallel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import fsdp

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
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **given)


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
    if not wanted:
        return contextlib.nullcontext()
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return fsdp.no_sync(model) if fsdp.is_sharded(model) else contextlib.nullcontext()


def zero_gradient_backward(
    model: nn.Module,
    inputs: dict[str, Any],
    forward: Callable[[], contextlib.AbstractContextManager],
    compute_loss: Callable[[nn.Module, dict[str, Any]], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
) -> None:
    """Runs forward and backward without adding to the gradients, where the other processes wait for this one.

    `forward` returns the context of a forward pass.
    """
    if not fsdp.is_sharded(model):
        with forward():
            compute_loss(model, inputs)  # an override may exchange numbers with the other processes
            trained = [parameter.sum().float() for parameter in model.parameters() if parameter.requires_grad]
            loss = torch.stack(trained).sum() * 0.0
        backward(loss)
        return
    # each block waits for the other processes in forward and backward, so this one computes the same blocks
    with fsdp.zeroed_gradients(model):
        with forward():
            loss = compute_loss(model, inputs).sum()
        backward(loss)
