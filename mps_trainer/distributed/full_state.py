"""Gathers sharded weights and optimizer states into full ones, and shards full ones.

`torch.distributed.checkpoint.state_dict` does not do the same: it gives the full weights to the first process only or
to the device of each, and unties tied ones; and it names the states of an optimizer by parameter, where optimizer.pt
has the indices of `Optimizer.state_dict`, which one process and transformers load.

All processes have to call these functions, except `local`, because each has a part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .fsdp import is_shard


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns `tensor` with the parts of all processes, on the host."""
    gathered: Any = tensor
    return (gathered.full_tensor() if is_shard(tensor) else gathered).detach().cpu()


def full_state_dict(model: nn.Module, keep: bool = True) -> dict[str, torch.Tensor]:
    """Returns the whole weights of `model`; tied ones are one tensor. Empty in a process that does not `keep` them."""
    made: dict[int, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
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
