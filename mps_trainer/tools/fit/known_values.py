"""Keeps the values of small fake tensors that are computed from the batch and from constants alone.

Many steps decide by such values: how many tokens stand for an image, which pixels are padding, how long a label is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from ...utils.nested import tensors_in
from .fake_tensors import fake_of

_MOST = 2**20  # numbers in a tensor whose values are kept
_MOST_FRACTIONS = 2**18  # fewer floats: each layer makes a mask of them, by which no step decides
_EMPTY = {getattr(torch.ops.aten, name) for name in ("empty", "empty_strided", "empty_like", "new_empty")}
_values = WeakTensorKeyDictionary()
_spoiled = WeakIdKeyDictionary()  # the storages that were partly overwritten with values that are not known


def fake_with_values(tensor: Tensor) -> Tensor:
    """Returns a fake tensor like `tensor`, with its values if it is small."""
    fake = fake_of(tensor)
    if _is_small(tensor):
        _values[fake] = tensor
    return fake


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() <= (_MOST_FRACTIONS if tensor.is_floating_point() else _MOST)


def values_of(tensor: Tensor) -> Tensor | None:
    """Returns a tensor with the values of `tensor`; None for a fake tensor whose values are not known."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    values = _values.get(tensor)
    return None if values is None or values.untyped_storage() in _spoiled else values


def are_known(func: Any, given: Iterable[Tensor]) -> bool:
    """Returns True if the result of an operator follows from known values of its arguments."""
    if any(values_of(each) is None for each in given) or func.overloadpacket in _EMPTY:
        return False
    return torch.Tag.nondeterministic_seeded not in func.tags


def computed(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Returns the result of an operator on the known values of its arguments."""
    with unset_fake_temporarily():
        return func(*tree_map_only(Tensor, values_of, args), **tree_map_only(Tensor, values_of, kwargs))


def keep_values(func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
    """Keeps the values of an operator's result where they are known and few, or a view of known ones."""
    fakes = [each for each in tensors_in(result) if isinstance(each, FakeTensor)]
    if fakes and (func.is_view or all(map(_is_small, fakes))):
        for fake, values in zip(fakes, tensors_in(computed(func, args, kwargs)), strict=True):
            _values[fake] = values
    else:
        spoil(func, args)


def spoil(func: Any, args: tuple) -> None:
    """Forgets the values of tensors that an operator overwrites with others that are not known."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in tensors_in(value):
                if isinstance(tensor, FakeTensor) and (values := values_of(tensor)) is not None:
                    _spoiled[values.untyped_storage()] = True


class HostReads(TorchFunctionMode):
    """Lets NumPy, lists and format strings read fake tensors: the known values, else ones."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in _READS and isinstance(args[0], FakeTensor):
            return _read(func, *args, **(kwargs or {}))
        if func is torch.tensor and args and isinstance(args[0], list):  # Qwen2-VL makes a tensor of a list of them
            args = (tree_map_only(FakeTensor, lambda each: _read(Tensor.tolist, each), args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def _read(func: Any, fake: Tensor, *args: Any, **kwargs: Any) -> Any:
    values = values_of(fake)
    with _disable_current_modes():
        known = torch.ones(fake.shape, dtype=fake.dtype) if values is None else values
        return func(known, *args, **kwargs)


_READS = {Tensor.numpy, Tensor.__array__, Tensor.__format__, Tensor.tolist}
