"""Walks over tensors in nested dictionaries, lists and tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in `value` in order. A tensor in two places is returned twice."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (dict, list, tuple, Mapping)):
        parts = value if isinstance(value, (list, tuple)) else value.values()
        return [tensor for part in parts for tensor in tensors_in(part)]
    return []


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
    value: Any, function: Callable[[torch.Tensor], torch.Tensor], others: Callable[[Any], Any] = lambda value: value
) -> Any:
    """Returns a copy of `value` with `function` applied to each tensor, and `others` to each other value.

    A dictionary or list whose class cannot be made of one is a plain one in the copy.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    parts: Any
    if isinstance(value, Mapping):
        parts = {key: map_tensors(part, function, others) for key, part in value.items()}
    elif isinstance(value, (list, tuple)):
        parts = [map_tensors(part, function, others) for part in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
    else:
        return others(value)
    try:
        return type(value)(parts)
    except TypeError:  # the constructor of a defaultdict takes a function, for one
        return parts
