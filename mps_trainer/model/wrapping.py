"""Wraps the model for the loops: compiled, sharded, or as a DDP replica."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..distributed import Processes
from ..distributed.ddp import inside, is_current, replicated
from ..distributed.fsdp import sharded
from ..errors import MisconfigurationException
from ..training_args import TrainingArguments
from ..utils.compiled import inside_compiled
from .activation_checkpointing import checkpoint_settings
from .introspection import is_offloaded, spans_devices


def wrapped(
    model: nn.Module, previous: nn.Module, args: TrainingArguments, processes: Processes, training: bool
) -> nn.Module:
    """Returns the wrapped `model`. A sharded model is sharded in place by the first call.

    Args:
        previous: what this returned before, which is returned again where it wraps the same model.
        training: a replica is for training alone.

    Raises:
        MisconfigurationException: for a backend or mode that torch.compile does not know.
    """
    if args.fsdp:
        return sharded(model, args, processes, checkpoint_settings(None, args.device))
    compiled = _compiled(model, previous, args) if args.torch_compile else model
    if not training or not processes.is_distributed:
        return compiled
    is_replica = inside(previous) is compiled and previous is not compiled
    return previous if is_replica and is_current(previous) else replicated(compiled, args)


def _compiled(model: nn.Module, previous: nn.Module, args: TrainingArguments) -> nn.Module:
    compiled: Any = inside(previous)
    if compiled is not model and inside_compiled(compiled) is model:
        return compiled
    backend, mode = args.torch_compile_backend or "inductor", args.torch_compile_mode
    try:
        compiled = torch.compile(model, backend=backend, mode=mode)
    except RuntimeError as error:  # no such mode, no such backend
        raise MisconfigurationException(
            f"torch_compile_backend={backend!r} with torch_compile_mode={mode!r} cannot be used: {error} Leave out "
            "the one that torch.compile does not know."
        ) from error
    return compiled


def is_placed(model: nn.Module, args: TrainingArguments) -> bool:
    """Returns True if the Trainer moves `model` to the device as a whole, before anything else."""
    if is_offloaded(model):  # Accelerate refuses to move it
        return False
    if args.place_model_on_device is not None:
        return args.place_model_on_device
    full_eval = args.fp16_full_eval or args.bf16_full_eval  # moves the model itself, in another format
    return not (full_eval or spans_devices(model) or args.fsdp)  # FSDP brings it there block by block
