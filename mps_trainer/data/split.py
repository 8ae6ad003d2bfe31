"""Splits a batch into smaller ones with the same examples in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from .order import evenly


class UnsplittableBatchError(ValueError):
    """A batch cannot be split into examples. The message is a clause with the reason."""


def examples_in(batch: Any) -> int:
    """Returns the number of examples in `batch`: the first dimension that its tensors have in common.

    A tensor with a first dimension of 1 is one that all examples share.

    Raises:
        UnsplittableBatchError: if there is no such dimension.
    """
    sizes = {array.shape[0] for array in _arrays(batch, nested=False)} - {1}
    if not sizes:
        arrays = list(_arrays(batch, nested=True))
        sizes = {array.shape[0] for array in arrays} - {1} or ({1} if arrays else set())
    if len(sizes) != 1:
        found = ", ".join(map(str, sorted(sizes))) if sizes else "no tensor with a dimension"
        raise UnsplittableBatchError(f"its tensors do not agree on a number of examples (first dimensions: {found})")
    return sizes.pop()


def split(batch: Any, most: int) -> list[Any]:
    """Splits `batch` into the fewest microbatches of at most `most` examples, of nearly equal size.

    Tensors, arrays and lists with an entry for each example, such as the boxes of each image, are sliced, as views;
    anything else goes into every microbatch. Dictionaries, lists and tuples keep their type.

    Raises:
        UnsplittableBatchError: if `batch` has more examples and cannot be cut.
    """
    size = examples_in(batch)
    if size <= most:
        return [batch]
    count = -(-size // most)
    shares = [evenly(range(size), number, count) for number in range(count)]
    return [_slice(batch, share.start, share.stop, size, is_batch=True) for share in shares]


def _slice(data: Any, start: int, end: int, size: int, is_batch: bool = False) -> Any:
    if isinstance(data, (torch.Tensor, np.ndarray)):
        return _slice_of_array(data, start, end, size)
    if isinstance(data, Mapping):
        return type(data)({key: _slice(value, start, end, size) for key, value in data.items()})  # type: ignore[call-arg]
    if isinstance(data, PackedSequence):
        raise UnsplittableBatchError("it has a packed sequence")
    if not isinstance(data, (list, tuple)):
        return data
    if len(data) == size:
        # ambiguous: such a list may have a tensor for each example, or several views of the whole batch
        have_size = [array.shape[0] == size for array in _arrays(data, nested=True)]
        is_list = isinstance(data, list) and not is_batch
        if is_list and not isinstance(data[0], Mapping) and have_size and all(have_size):
            raise UnsplittableBatchError(f"it has {size} examples and a list of {size} tensors of that length")
        if is_list or not any(have_size):
            return data[start:end]  # an entry for each example
    slices = [_slice(value, start, end, size) for value in data]
    return type(data)(*slices) if hasattr(data, "_fields") else type(data)(slices)


def _slice_of_array(array: Any, start: int, end: int, size: int) -> Any:
    if not array.shape or (array.shape[0] == 1 and size > 1):
        return array
    if array.shape[0] != size:
        raise UnsplittableBatchError(f"it has {size} examples and a tensor of the shape {tuple(array.shape)}")
    if isinstance(array, torch.Tensor) and array.layout != torch.strided:
        raise UnsplittableBatchError("it has a sparse tensor")
    return array[start:end]


def _arrays(data: Any, nested: bool, depth: int = 0) -> Iterator[Any]:
    """Yields tensors and arrays with a dimension; without `nested`, none from a list within the batch."""
    if isinstance(data, torch.Tensor) and data.is_nested:
        raise UnsplittableBatchError("it has a nested tensor")
    if isinstance(data, (torch.Tensor, np.ndarray)):
        if data.shape:
            yield data
    elif isinstance(data, Mapping) or (isinstance(data, (list, tuple)) and (nested or depth == 0)):
        for value in data.values() if isinstance(data, Mapping) else data:
            yield from _arrays(value, nested, depth + 1)
