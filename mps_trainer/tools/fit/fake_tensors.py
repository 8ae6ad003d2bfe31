"""Tensors that have a shape and a number format, and no memory."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from ...utils.attributes import attributes_replaced
from ...utils.nested import map_plain_tensors, tensors_in

_CPU = torch.device("cpu")


@cache
def fake_mode() -> FakeTensorMode:
    """Returns the mode of all fake tensors here. Inside it, what operators make is fake."""
    # In a build for CUDA the mode registers eight devices. The first backward pass makes a thread for each device that
    # it finds, after which no simulated device can be added, so it comes before.
    torch.zeros((), requires_grad=True, device=_CPU).backward()
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_of(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns a fake tensor of the CPU like `tensor`, in its format or in `dtype`; for a parameter, a parameter."""
    with unset_fake_temporarily():
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device="meta")
    fake: torch.Tensor = FakeTensor(fake_mode(), meta, _CPU)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad)


def fake_copy(value: Any, memo: dict[int, Any]) -> Any:
    """Returns a deep copy of a module or an optimizer in which all tensors are fake.

    Args:
        memo: the copies by the id of what was copied, as `copy.deepcopy` has it.
    """
    is_module = isinstance(value, nn.Module)
    for tensor in [*value.parameters(), *value.buffers()] if is_module else tensors_in(value.state):
        if id(tensor) not in memo:
            memo[id(tensor)] = map_plain_tensors(tensor, fake_of)
    return copy.deepcopy(value, memo)


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
                # The device of this tensor exists, as the script's has to.
                dtype = fn(torch.empty(0, dtype=old.dtype)).dtype
            new = old if dtype is old.dtype else fake_of(old, dtype)
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

    with attributes_replaced([(nn.Module, "_apply", apply)]):
        yield
