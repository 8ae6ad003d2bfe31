"""Tensors of all processes, on their devices: gathered, reduced, padded to one shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .processes import Processes

if TYPE_CHECKING:
    import torch


def gather(value: Any, processes: Processes) -> Any:
    """Tensors of one shape in all processes, joined in the first dimension; a number becomes a tensor of all."""

    def joined(tensor: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        tensor = torch.atleast_1d(tensor.detach()).contiguous()
        everybodys = [torch.empty_like(tensor) for _ in range(processes.size)]
        dist.all_gather(everybodys, tensor)
        return torch.cat(everybodys)

    return _map(joined, value) if processes.are_several else value


def gather_for_metrics(value: Any, processes: Processes, as_objects: bool = False) -> Any:
    """Tensors joined in the first dimension, in which they may differ; anything else in one list."""
    import torch

    if not processes.are_several:
        return value
    if as_objects or not isinstance(value, (torch.Tensor, list, tuple, Mapping)):
        everybodys = processes.gather(value)
        return [item for each in everybodys for item in (each if isinstance(each, list) else [each])]
    device = _device(value)
    everybodys = processes.gather(_map(lambda tensor: torch.atleast_1d(tensor.detach()).cpu(), value))
    return _map(lambda *tensors: torch.cat(tensors).to(device), *everybodys)


def reduce(value: Any, processes: Processes, reduction: str = "sum", scale: float = 1.0) -> Any:
    """The "sum" or "mean" of tensors over all processes, times `scale`; themselves with reduction "none"."""

    def reduced(tensor: torch.Tensor) -> torch.Tensor:
        import torch.distributed as dist

        tensor = tensor.clone()
        dist.all_reduce(tensor)
        return tensor * (scale / processes.size if reduction == "mean" else scale)

    return _map(reduced, value) if processes.are_several and reduction != "none" else value


def pad(value: Any, processes: Processes, dim: int = 0, index: float = 0, first: bool = False) -> Any:
    """Tensors as long in `dim` as the longest of all processes, filled with `index` at the end or the beginning."""

    def padded(tensor: torch.Tensor) -> torch.Tensor:
        if dim >= tensor.dim():
            return tensor
        longest = int(processes.highest([tensor.shape[dim]])[0])
        if longest == tensor.shape[dim]:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = longest
        whole = tensor.new_full(shape, index)
        start = longest - tensor.shape[dim] if first else 0
        whole.narrow(dim, start, tensor.shape[dim]).copy_(tensor)
        return whole

    return _map(padded, value) if processes.are_several else value


def _device(value: Any) -> Any:
    while not hasattr(value, "device"):
        value = next(iter(value.values() if isinstance(value, Mapping) else value))
    return value.device


def _map(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """`function` of the tensors that have the same place in each; what is no tensor stays the first one's."""
    import torch

    if isinstance(first, torch.Tensor):
        return function(first, *others)
    if isinstance(first, (list, tuple)):
        parts = [_map(function, *several) for several in zip(first, *others, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, Mapping):
        return type(first)({key: _map(function, first[key], *(other[key] for other in others)) for key in first})  # type: ignore[call-arg]
    return first
