"""Makes autocast on CPU tensors cast as autocast on mps does.

Which operators autocast runs in lower precision, which in float32 and which in the widest format of their arguments
differs from device to device: on mps a layer norm, a softmax and a sum are float32, on the CPU they are not. A trace
runs on the CPU, so while one is on, the CPU's list gives way to that of mps.

Every build of torch registers the operators of that list, and only the kernels say which format each takes.
`python -m tools.apple_binary` read the formats from the builds for Apple silicon, 2.6.0 to 2.15.0; a test of the
acceptance tier compares the two again. The names of the policies are those of torch, ATen/autocast_mode.h.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...utils.nested import tensors_in

_LOWER_PRECISION = """
    _convolution _convolution.deprecated _mps_convolution addbmm addmm addmv addr baddbmm bmm chain_matmul
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input convolution einsum linalg_multi_dot linear
    lstm_cell matmul mm mv prelu scaled_dot_product_attention
"""
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot"

_KEY = "AutocastCPU"
_is_on = False


@contextlib.contextmanager
def autocast_of_mps() -> Iterator[None]:
    """Makes `torch.autocast("cpu")` cast like `torch.autocast("mps")` inside, in the whole process."""
    global _is_on
    if _is_on:  # this trace is inside another
        yield
        return
    with overridden(_kernels(), _KEY):
        _is_on = True
        try:
            yield
        finally:
            _is_on = False


@contextlib.contextmanager
def overridden(kernels: Mapping[str, Callable], key: str) -> Iterator[None]:
    """Replaces kernels of torch's operators under a dispatch key inside, in the whole process."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verrid")  # overriding is the purpose
        for name, kernel in kernels.items():
            library.impl(name, kernel, key)
    try:
        yield
    finally:
        library._destroy()


def policy(operator: str) -> str:
    """Returns what autocast does on mps with the arguments of an operator that torch has registered for it.

    "lower_precision_fp": casts them to autocast's format; "fp32": to float32; "promote": to the widest format among
    them. Autocast leaves the arguments of operators that are not registered for it as they are.
    """
    name = operator.removeprefix("aten::")
    return (
        "lower_precision_fp" if name in _LOWER_PRECISION.split() else "promote" if name in _WIDEST.split() else "fp32"
    )


@cache
def _kernels() -> dict[str, Callable]:
    kernels: dict[str, Callable] = {}
    on_mps = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastMPS"))  # in every build of torch
    on_cpu = set(torch._C._dispatch_get_registrations_for_dispatch_key(_KEY))
    for name in on_mps | on_cpu:
        if not name.startswith("aten::"):
            continue
        if name not in on_mps:
            func = _overload(name)
            is_composite = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
            kernels[name] = torch.library.fallthrough_kernel if is_composite else _as_it_is(func)
        # conv_transpose3d is the only operator of lower precision on one device and of float32 on the other. For the
        # others torch's own kernel does the same, and keeps the casts of weights for the whole forward pass.
        elif name not in on_cpu or policy(name) != "lower_precision_fp":
            kernels[name] = _casting(_overload(name), policy(name))
    return kernels


def _overload(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _casting(func: Any, policy: str) -> Callable:
    """Returns a kernel that casts the arguments."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _no_autocast():
            is_lower = policy == "lower_precision_fp"
            if policy == "promote":
                is_lower = all(tensor.dtype is not torch.float32 for tensor in tensors_in((args, kwargs)))
            dtype = torch.get_autocast_dtype("cpu") if is_lower else torch.float32
            return func(*_cast(args, dtype), **_cast(kwargs, dtype))

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
    """Returns `values` with their tensors in `dtype`, except tensors of integers or float64."""

    def cast(tensor: Tensor) -> Tensor:
        can_be = tensor.is_floating_point() and tensor.dtype is not torch.float64 and tensor.device.type == "cpu"
        return tensor.to(dtype) if can_be and tensor.dtype is not dtype else tensor

    return tree_map_only(Tensor, cast, values)
