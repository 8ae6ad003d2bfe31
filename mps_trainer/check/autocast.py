"""Makes autocast on CPU tensors cast as autocast on mps does.

Which operators autocast runs in lower precision, which in float32 and which in the widest format of their arguments
differs from device to device: on mps a layer norm, a softmax and a sum are float32, on the CPU they are not. A trace
runs on the CPU, so while one is on, the CPU's list gives way to that of mps.

`python -m tools.apple_binary` read that list from the builds of torch for Apple silicon, 2.6.0 to 2.15.0; a test of
the acceptance tier compares the two again. The names of the policies are those of torch, ATen/autocast_mode.h.
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

from ..devices.facts import parse_version

_LOWER_PRECISION = """
    _convolution _convolution.deprecated _mps_convolution addbmm addmm addmv addr baddbmm bmm chain_matmul
    conv1d conv2d conv_tbc conv_transpose1d conv_transpose2d.input convolution einsum linalg_multi_dot linear
    lstm_cell matmul mm mv prelu scaled_dot_product_attention
"""
_FLOAT32 = """
    acos asin batch_norm binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity
    cumprod cumsum dist erfinv exp expm1 frobenius_norm.dim group_norm hinge_embedding_loss huber_loss kl_div
    l1_loss layer_norm linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log log10 log1p log2
    log_softmax.int logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    native_layer_norm nll_loss nll_loss2d nuclear_norm nuclear_norm.dim pdist poisson_nll_loss pow.Scalar
    pow.Tensor_Scalar pow.Tensor_Tensor prod prod.dim_int reciprocal renorm rsqrt sinh smooth_l1_loss
    soft_margin_loss softmax.int softplus sum sum.dim_IntList tan triplet_margin_loss
"""
_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot
"""

# From this release on.
_ADDED = {"conv3d": ((2, 9), "lower_precision_fp"), "conv_transpose3d.input": ((2, 9), "fp32")}
# Up to the release before this one: torch 2.13 has no operators for named dimensions any more.
_DIMENSION_NAMES_UNTIL = (2, 13)
_OF_DIMENSION_NAMES = """
    cumprod.dimname cumsum.dimname log_softmax.Dimname prod.dim_Dimname softmax.Dimname sum.dim_DimnameList
"""

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


def autocast_list(torch_version: str) -> dict[str, str]:
    """Returns what autocast does on mps in this release of torch, by operator.

    "lower_precision_fp": casts the arguments to autocast's format; "fp32": to float32; "promote": to the widest format
    among them. Autocast leaves the arguments of any other operator as they are.
    """
    version = parse_version(torch_version)
    policies = {"lower_precision_fp": _LOWER_PRECISION, "fp32": _FLOAT32, "promote": _WIDEST}
    found = {name: policy for policy, names in policies.items() for name in names.split()}
    found |= {name: policy for name, (since, policy) in _ADDED.items() if version >= since}
    if version < _DIMENSION_NAMES_UNTIL:
        found |= dict.fromkeys(_OF_DIMENSION_NAMES.split(), "fp32")
    return {f"aten::{name}": policy for name, policy in found.items()}


@cache
def _kernels() -> dict[str, Callable]:
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
