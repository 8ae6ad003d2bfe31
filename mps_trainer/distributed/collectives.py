"""Gathers, reduces and pads tensors over all processes, on their devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import MisconfigurationException
from .processes import Processes

if TYPE_CHECKING:
    import torch

REDUCTIONS = ("sum", "mean", "max", "none")


def gather(value: Any, processes: Processes) -> Any:
    """Concatenates tensors of one shape from all processes in the first dimension. Numbers become a tensor."""

    def joined(tensor: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        tensor = torch.atleast_1d(tensor.detach()).contiguous()
        everybodys = [torch.empty_like(tensor) for _ in range(processes.size)]
        dist.all_gather(everybodys, tensor)
        return torch.cat(everybodys)

    return _map(joined, value) if processes.is_distributed else value


def gather_for_metrics(value: Any, processes: Processes, as_objects: bool = False) -> Any:
    """Concatenates tensors that may differ in the first dimension. Other objects are joined in one list."""
    import torch

    if not processes.is_distributed:
        return value
    tensors = _tensors(value)
    if as_objects or tensors is None:
        # A text is one item, of which Accelerate makes one of each letter.
        everybodys = processes.gather(value)
        return [item for each in everybodys for item in (each if _has_items(each) else [each])]
    device = tensors[0].device
    everybodys = processes.gather(_map(lambda tensor: torch.atleast_1d(tensor.detach()).cpu(), value))
    return _map(lambda *parts: torch.cat(parts).to(device), *everybodys)


def reduce(value: Any, processes: Processes, reduction: str = "sum") -> Any:
    """Returns the "sum", "mean" or "max" of tensors over all processes; the tensors themselves with "none".

    Raises:
        MisconfigurationException: for another reduction.
    """
    if reduction not in REDUCTIONS:
        raise MisconfigurationException(
            f"reduction={reduction!r} is not one of {', '.join(map(repr, REDUCTIONS))}. Use one of them, or gather "
            "the tensors and reduce the result."
        )

    def reduced(tensor: torch.Tensor) -> torch.Tensor:
        import torch.distributed as dist

        tensor = tensor.clone()
        dist.all_reduce(tensor, dist.ReduceOp.MAX if reduction == "max" else dist.ReduceOp.SUM)
        return tensor / processes.size if reduction == "mean" else tensor

    return _map(reduced, value) if processes.is_distributed and reduction != "none" else value


def pad(value: Any, processes: Processes, dim: int = 0, index: float = 0, first: bool = False) -> Any:
    """Pads tensors in `dim` to the longest of all processes with `index`, at the end or the beginning.

    Those without such a dimension stay as they are.
    """

    def padded(tensor: torch.Tensor) -> torch.Tensor:
        if not -tensor.dim() <= dim < tensor.dim():
            return tensor
        longest = int(processes.all_reduce_max([tensor.shape[dim]])[0])
        if longest == tensor.shape[dim]:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = longest
        whole = tensor.new_full(shape, index)
        start = longest - tensor.shape[dim] if first else 0
        whole.narrow(dim, start, tensor.shape[dim]).copy_(tensor)
        return whole

    return _map(padded, value) if processes.is_distributed else value


def _has_items(value: Any) -> bool:
    import torch

    return isinstance(value, (list, tuple)) or (isinstance(value, torch.Tensor) and value.dim() > 0)


def _tensors(value: Any) -> list[torch.Tensor] | None:
    """Returns the tensors in `value`; None if it contains anything else, or nothing."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, (list, tuple, Mapping)):
        return None
    parts = [_tensors(part) for part in (value.values() if isinstance(value, Mapping) else value)]
    found = [tensor for part in parts if part is not None for tensor in part]
    return None if None in parts or not found else found


def _map(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Applies `function` to the tensors at the same place in each; everything else is taken from the first."""
    import torch

    if isinstance(first, torch.Tensor):
        return function(first, *others)
    if isinstance(first, (list, tuple)):
        parts = [_map(function, *several) for several in zip(first, *others, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, Mapping):
        return type(first)({key: _map(function, first[key], *(other[key] for other in others)) for key in first})  # type: ignore[call-arg]
    return first
