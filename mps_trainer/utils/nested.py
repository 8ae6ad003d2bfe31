"""Walks over tensors in nested dictionaries, lists and tuples, and returns their sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def _never(value: Any) -> bool:
    return False


def tensors_in(value: Any, is_leaf: Callable[[Any], bool] = _never) -> list[torch.Tensor]:
    """Returns the tensors in `value` in order, except inside a leaf, and twice if a tensor is in two places."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (dict, list, tuple, Mapping)) and not is_leaf(value):
        parts = value if isinstance(value, (list, tuple)) else value.values()
        return [tensor for part in parts for tensor in tensors_in(part, is_leaf)]
    return []


def find_batch_size(batch: Any) -> int | None:
    """Returns the first dimension of the first tensor in `batch`, None without one.

    transformers' function of this name fails for nested tensors (`torch.nested`), and takes all steps of a packed
    sequence for examples.
    """
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else None
    if isinstance(batch, np.ndarray):
        return len(batch) if batch.ndim else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((size for part in parts if (size := find_batch_size(part)) is not None), None)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns the shape of `tensor`, or of its values if it is nested and has no shape of whole numbers."""
    return tuple(tensor.values().shape if tensor.is_nested else tensor.shape)


def plain_tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in `value`; for one that is made of others, such as codes and their scales, those others."""
    for tensor in tensors_in(value):
        if is_traceable_wrapper_subclass(tensor):
            yield from plain_tensors_in([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
        else:
            yield tensor


def map_plain_tensors(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Returns `function(tensor)`; for one that is made of others, one of its class made of their results."""
    if not is_traceable_wrapper_subclass(tensor):
        return function(tensor)
    names, context = tensor.__tensor_flatten__()
    parts = {name: map_plain_tensors(getattr(tensor, name), function) for name in names}
    return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())


def map_tensors(
    value: Any,
    function: Callable[[torch.Tensor], torch.Tensor],
    others: Callable[[Any], Any] = lambda value: value,
    is_leaf: Callable[[Any], bool] = _never,
) -> Any:
    """Returns a copy of `value` with `function` applied to each tensor, and `others` to each other value.

    A dictionary or list whose class cannot be made of one is a plain one in the copy. One that is a leaf is given to
    `others`.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    parts: Any
    if not isinstance(value, (Mapping, list, tuple)) or is_leaf(value):
        return others(value)
    if isinstance(value, Mapping):
        parts = {key: map_tensors(part, function, others, is_leaf) for key, part in value.items()}
    else:
        parts = [map_tensors(part, function, others, is_leaf) for part in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
    try:
        return type(value)(parts)  # type: ignore[call-arg]
    except TypeError:  # the constructor of a defaultdict takes a function, for one
        return parts
