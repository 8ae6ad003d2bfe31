"""Tensors that have a shape and a number format, and no memory."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch.utils._pytree import tree_map_only

from ..utils.nested import tensors_in

_CPU, _META = torch.device("cpu"), torch.device("meta")


@cache
def fake_mode() -> FakeTensorMode:
    """Returns the mode of all fake tensors here. Inside it, what operators make is fake."""
    # In a build for CUDA the mode registers eight devices. The first backward pass makes a thread for each device that
    # it finds, after which no simulated device can be added, so it comes before.
    torch.zeros((), requires_grad=True, device=_CPU).backward()
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a fake tensor of the CPU with the shape and format of `tensor`; for a parameter, a parameter."""
    with unset_fake_temporarily():
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    fake: torch.Tensor = FakeTensor(fake_mode(), meta, _CPU)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad)


def _in_format(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    new = fake_of(torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta"))
    return nn.Parameter(new, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def quickly(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Returns what `func` makes of fake tensors, faster than they do by themselves.

    The layers of a model are alike, so most operators have had arguments of the same shapes before. The result of one
    that neither changes its arguments nor returns a part of them is remembered by the shapes, strides and formats of
    its arguments, and by the other arguments.

    Raises:
        NotImplementedError: for an operator that has to have values or a device.
    """
    key = _key(func, args, kwargs) if _is_pure(func) else None
    if key is not None and (known := _results.get(key)) is not None:
        return _made_again(known)
    mode = fake_mode()
    with in_kernel_invocation_manager(mode):
        result = func(*args, **kwargs)
    if key is not None and (remembered := _remembered(result, (*args, *kwargs.values()))) is not None:
        _results[key] = remembered
    if isinstance(result, torch.Tensor):
        return _wrapped(result, mode)
    return tree_map_only(torch.Tensor, lambda each: _wrapped(each, mode), result)


_Form = tuple[torch.Size, tuple[int, ...], torch.dtype]  # shape, strides and format of a tensor
_results: dict[Any, tuple[type, tuple[_Form | None, ...]]] = {}  # the kind of a result, and its tensors


@cache
def _is_pure(func: Any) -> bool:
    """Returns True for an operator of torch's whose schema says that its results share no memory with anything."""
    schema = func._schema
    return (
        func.namespace == "aten"
        and all(each.alias_info is None for each in (*schema.arguments, *schema.returns))
        and bool(schema.returns)
    )


def _key(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Returns what the form of an operator's result depends on; None if that is more than can be told."""
    parts: list[Any] = [func, torch.get_default_dtype()]
    if not (_add(parts, args) and _add(parts, kwargs.values()) and _add(parts, kwargs)):
        return None
    return tuple(parts)


def _add(parts: list[Any], values: Iterable[Any]) -> bool:
    for each in values:
        if isinstance(each, torch.Tensor):
            if type(each) is not FakeTensor or each.layout is not torch.strided or each.dtype.is_complex:
                return False
            parts += (FakeTensor, each.shape, each.stride(), each.dtype)
        elif isinstance(each, list | tuple):
            parts += (list, len(each))
            if not _add(parts, each):
                return False
        elif isinstance(each, _PLAIN):
            parts += (type(each), each)  # 1, 1.0 and True are equal, and make results of different formats
        else:
            return False
    return True


_PLAIN = (int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _remembered(result: Any, given: Iterable[Any]) -> tuple[type, tuple[_Form | None, ...]] | None:
    """Returns the forms of an operator's results; None if one is no tensor, or shares its memory with another.

    Args:
        given: the arguments. `_unsafe_view` has the memory of one, which its schema does not say.
    """
    forms: list[_Form | None] = []
    storages = {tensor.untyped_storage()._cdata for tensor in tensors_in(list(given))}
    for one in result if type(result) in (tuple, list) else (result,):
        if one is None:
            forms.append(None)
            continue
        if not isinstance(one, torch.Tensor) or one.layout is not torch.strided or one.storage_offset():
            return None
        storage = one.untyped_storage()
        if storage._cdata in storages:
            return None
        storages.add(storage._cdata)
        with in_kernel_invocation_manager(fake_mode()):
            made = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=_META)
        if made.untyped_storage().nbytes() != storage.nbytes():
            return None
        forms.append((one.shape, one.stride(), one.dtype))
    return type(result) if type(result) in (tuple, list) else torch.Tensor, tuple(forms)


def _made_again(known: tuple[type, tuple[_Form | None, ...]]) -> Any:
    kind, forms = known
    results = [None if form is None else _fake(*form) for form in forms]
    return results[0] if kind is torch.Tensor else kind(results)


def _fake(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    mode = fake_mode()
    with in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(shape, strides, dtype=dtype, device=_META)
    return FakeTensor(mode, meta, _CPU)


def _wrapped(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    return tensor if isinstance(tensor, FakeTensor) else FakeTensor(mode, tensor, _CPU)


def fake_copy(value: Any, memo: dict[int, Any]) -> Any:
    """Returns a deep copy of a module or an optimizer in which all tensors are fake.

    Args:
        memo: the copies by the id of what was copied, as `copy.deepcopy` has it.
    """
    for tensor in _tensors(value):
        if id(tensor) not in memo:
            memo[id(tensor)] = fake_of(tensor)
    return copy.deepcopy(value, memo)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    states = (state for states in value.state.values() for state in states.values())
    return [state for state in states if isinstance(state, torch.Tensor)]


def make_fake(module: nn.Module) -> None:
    """Replaces the parameters and buffers of a module by fake ones, where they are not; shared ones stay shared."""
    made: dict[int, torch.Tensor] = {}
    for each in module.modules():
        for tensors in (each._parameters, each._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and not isinstance(tensor, FakeTensor):
                    tensors[name] = made.setdefault(id(tensor), fake_of(tensor))  # type: ignore[assignment]


@contextlib.contextmanager
def modules_convert_fakes() -> Iterator[None]:
    """Lets `module.to(...)`, `half()` and their like convert fake parameters, which torch refuses to do.

    A parameter that two modules share stays shared. All stay on the CPU.
    """
    plain = nn.Module._apply
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # old and new, by the old one's id
    depth = 0

    def converted(old: torch.Tensor, fn: Callable[[Any], Any]) -> torch.Tensor:
        if id(old) not in made:
            with torch.no_grad():
                dtype = fn(
                    torch.empty(0, dtype=old.dtype)
                ).dtype  # on a device that is there, as the script's has to be
            new = old if dtype is old.dtype else _in_format(old, dtype)
            made[id(old)] = old, new
        return made[id(old)][1]

    def apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
        nonlocal depth
        own: list[dict[str, Any]] = [module._parameters, module._buffers]
        fakes: list[dict[str, torch.Tensor]] = [
            {name: each for name, each in tensors.items() if isinstance(each, FakeTensor)} for tensors in own
        ]
        for tensors, fake in zip(own, fakes, strict=True):
            tensors.update(dict.fromkeys(fake))
        depth += 1
        try:
            plain(module, fn, recurse)
            fakes = [{name: converted(old, fn) for name, old in fake.items()} for fake in fakes]
        finally:
            for tensors, fake in zip(own, fakes, strict=True):
                tensors.update(fake)
            depth -= 1
            if not depth:
                made.clear()
        return module

    nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = plain  # type: ignore[method-assign]
