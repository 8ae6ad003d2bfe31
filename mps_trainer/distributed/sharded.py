"""Looks into sharded models: their class, whole weights and optimizer states, and parts of whole ones.

`torch.distributed.checkpoint.state_dict` does not gather the same: it gives the full weights to the first process only
or to the device of each, and unties tied ones; and it names the states of an optimizer by parameter, where
optimizer.pt has the indices of `Optimizer.state_dict`, which one process and transformers load.

All processes have to call the functions that gather or load, because each has a part.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..utils.compiled import uncompiled


def is_sharded(model: Any) -> bool:
    """Returns True if torch has sharded `model`, without importing torch's FSDP."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return kind is not None and isinstance(model, kind)


def class_of(model: nn.Module) -> type:
    """Returns the model's own class, without the one that torch's FSDP derives from it."""
    return type(model).__mro__[2] if is_sharded(model) else type(model)


def is_shard(tensor: Any) -> bool:
    """Returns True if each process has a part of `tensor`."""
    return hasattr(tensor, "full_tensor")


def full(tensor: Any) -> torch.Tensor:
    """Returns `tensor` with the parts of all processes."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns `tensor` with the parts of all processes, on the host."""
    return full(tensor).detach().cpu()


def full_state_dict(model: nn.Module, keep: bool = True) -> dict[str, torch.Tensor]:
    """Returns the whole weights of `model`; tied ones are one tensor. Empty in a process that does not `keep` them."""
    made: dict[int, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}
    with uncompiled(model) as inner:
        state = inner.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if id(tensor) not in made:
            gathered = whole(tensor)
            made[id(tensor)] = gathered if keep else torch.empty(0)
        if keep:
            weights[name] = made[id(tensor)]
    return weights


def whole_state(optimizer: torch.optim.Optimizer, keep: bool = True) -> dict[str, Any]:
    """Returns the whole `optimizer.state_dict()`, without tensors in a process that does not keep them."""
    packed = optimizer.state_dict()
    state: dict[Any, dict[str, Any]] = {}
    for index, values in packed["state"].items():
        gathered = {name: whole(each) if torch.is_tensor(each) else each for name, each in values.items()}
        if keep:
            state[index] = gathered
    return {**packed, "state": state}


def load_full_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> Any:
    """Loads the full `weights`, or this process's part of them into a sharded model.

    Returns missing and unexpected names.

    Raises:
        RuntimeError: for a shape that does not fit.
    """
    state = model.state_dict()
    parts = {name: _part_like(tensor, state.get(name)) for name, tensor in weights.items()}
    return model.load_state_dict(parts, strict=False)


def parted_state(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns `saved`, the whole state of an optimizer, with tensors as large as a parameter sharded."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    of = dict(zip(indices, parameters, strict=True))
    state = {
        index: {name: _part_like(value, of[index]) for name, value in values.items()}
        for index, values in saved["state"].items()
    }
    return {**saved, "state": state}


def local(tensor: Any) -> torch.Tensor:
    """Returns this process's part of `tensor`, in its memory; needs no other process."""
    return tensor.to_local() if is_shard(tensor) else tensor


def _part_like(value: Any, parameter: Any) -> Any:
    """Returns this process's part of `value` if it has the shape of a sharded `parameter`, else `value`."""
    if not torch.is_tensor(value) or not is_shard(parameter) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    there = value.to(parameter.device_mesh.device_type).contiguous()
    part = distribute_tensor(there, parameter.device_mesh, parameter.placements)
    return part.to(local(parameter).device)


# Around passes


@contextlib.contextmanager
def zeroed_gradients(model: Any) -> Iterator[None]:
    """Makes forward and backward passes inside produce gradients of 0 for each parameter.

    A loss of 0 would not: 0 times an activation that is infinite or nan is nan.
    """
    handles: list[Any] = []

    def watch(module: nn.Module, given: Any) -> None:
        """Zeroes the gradients of the parameters that were just gathered for this block."""
        for parameter in module.parameters():
            if parameter.requires_grad and not is_shard(parameter):
                handles.append(parameter.register_hook(torch.zeros_like))

    for module in model.modules():
        if is_sharded(module):
            handles.append(module.register_forward_pre_hook(watch))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def reshard_after(model: nn.Module) -> Iterator[None]:
    """Reshards at the end the parameters that a forward pass without gradients has gathered."""
    try:
        yield
    finally:
        for module in model.modules():
            if is_sharded(module):
                module.reshard()  # type: ignore[operator]
