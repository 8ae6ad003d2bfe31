"""Makes autocast on CPU tensors cast as autocast on mps does.

Which operators autocast runs in lower precision, which in float32 and which in the widest format of their arguments
differs from device to device: on mps a layer norm, a softmax and a sum are float32, on the CPU they are not. A trace
runs on the CPU, so while one is on, the CPU's list gives way to that of mps.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .autocast_list import autocast_list

_KEY = "AutocastCPU"
_lock = threading.Lock()
_entered = 0
_active = contextlib.ExitStack()


@contextlib.contextmanager
def autocast_of_mps() -> Iterator[None]:
    """Makes `torch.autocast("cpu")` cast like `torch.autocast("mps")` inside, in the whole process."""
    global _entered
    with _lock:
        if not _entered:
            _active.enter_context(overridden(_kernels(), _KEY))
        _entered += 1
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if not _entered:
                _active.close()


@contextlib.contextmanager
def overridden(kernels: Mapping[str, Callable], key: str) -> Iterator[None]:
    """Replaces kernels of torch's operators under a dispatch key inside, in the whole process."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verrid")  # which is the purpose
        for name, kernel in kernels.items():
            library.impl(name, kernel, key)
    try:
        yield
    finally:
        library._destroy()


@cache
def _kernels() -> dict[str, Callable]:
    """Returns the kernels to register, by operator."""
    policies = autocast_list(torch.__version__)
    kernels: dict[str, Callable] = {}
    for name in torch._C._dispatch_get_all_op_names():
        policy = policies.get(name)
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, _KEY) and name.startswith("aten::"):
            if policy is None:
                func = _overload(name)
                is_composite = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
                kernels[name] = torch.library.fallthrough_kernel if is_composite else _as_it_is(func)
                continue
            # conv_transpose3d is the only operator of lower precision on one device and of float32 on the other. For
            # the others torch's own kernel does the same, and keeps the casts of weights for the whole forward pass.
            if policy == "lower_precision_fp":
                continue
        if policy is not None:
            kernels[name] = _casting(_overload(name), _POLICIES[policy])
    return kernels


def _overload(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _casting(func: Any, target: Callable[[list[torch.dtype]], torch.dtype]) -> Callable:
    """Returns a kernel that casts the arguments to the format that `target` picks from theirs."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _no_autocast():
            found: list[torch.dtype] = []
            tree_map_only(Tensor, lambda tensor: found.append(tensor.dtype), (args, kwargs))
            args, kwargs = _cast(args, target(found)), _cast(kwargs, target(found))
            return func(*args, **kwargs)

    return run


def _as_it_is(func: Any) -> Callable:
    """Returns a kernel that casts nothing. Where the CPU does not compute in that format, it computes in float32."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _no_autocast():
            try:
                return func(*args, **kwargs)
            except RuntimeError as error:
                if "not implemented for" not in str(error):
                    raise
                result = func(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))
                return _cast(result, torch.get_autocast_dtype("cpu"))

    return run


def _no_autocast() -> contextlib.AbstractContextManager:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Returns `values` with their tensors in `dtype`; those of integers or float64 stay as they are."""

    def cast(tensor: Tensor) -> Tensor:
        can_be = tensor.is_floating_point() and tensor.dtype is not torch.float64 and tensor.device.type == "cpu"
        return tensor.to(dtype) if can_be and tensor.dtype is not dtype else tensor

    return tree_map_only(Tensor, cast, values)


_POLICIES: dict[str, Callable[[list[torch.dtype]], torch.dtype]] = {
    "lower_precision_fp": lambda found: torch.get_autocast_dtype("cpu"),
    "fp32": lambda found: torch.float32,
    "promote": lambda found: torch.float32 if torch.float32 in found else torch.get_autocast_dtype("cpu"),
}
