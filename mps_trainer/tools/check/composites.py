"""Decomposes composite operators as mps would.

The kernel that mps would take can be run on the CPU, where its parts are seen one by one, except where it asks for the
device of its tensors. Those cases are listed here, with what mps takes instead (torch 2.13.0, ATen/native).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...utils.nested import tensors_in
from .mps_kernels import reads
from .table import COMPOSITE_KEYS, always_falls_back

_KEYS = [getattr(torch._C.DispatchKey, name) for name in COMPOSITE_KEYS]

# The CPU takes the operator on the left, mps those on the right.
_INSTEAD_ON_MPS: dict[str, tuple[str, ...]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": ("aten::_scaled_dot_product_attention_math_for_mps",),
    # The attention that keeps a gradient on mps is made of matmul and softmax, whose gradients are native.
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": ("aten::bmm", "aten::_softmax_backward_data"),
    "aten::mkldnn_rnn_layer": ("aten::_lstm_mps",),
    "aten::mkldnn_rnn_layer_backward": ("aten::lstm_mps_backward",),
}
_CONVOLUTIONS = {
    "aten::convolution": ("aten::_mps_convolution", "aten::_mps_convolution_transpose"),
    "aten::convolution_backward": ("aten::mps_convolution_backward", "aten::mps_convolution_transpose_backward"),
}


def instead_on_mps(
    func: Any, args: tuple, kwargs: dict[str, Any], singular_values_only: bool
) -> tuple[str, ...] | None:
    """Returns the operators that mps takes where the CPU takes `func`; None where it takes `func` itself.

    `singular_values_only`: the function of torch that was called wants no singular vectors.
    """
    name = func.name()
    if (convolution := name.removesuffix("_overrideable")) in _CONVOLUTIONS:
        return (_CONVOLUTIONS[convolution][bool(_argument(func, "transposed", args, kwargs))],)
    by_hand = "aten::linalg_svd" in always_falls_back(torch.__version__)
    if by_hand and name.startswith("aten::_linalg_svd") and not singular_values_only:
        return ("aten::linalg_svd",)  # registered by hand above the operator that it is made of on the CPU
    return _INSTEAD_ON_MPS.get(name)


def composite_key(func: Any, tensors: list[Tensor]) -> Any:
    """Returns the key of the kernel that mps would take for the composite operator `func`; None if there is none."""
    if any(tensor.layout != torch.strided for tensor in tensors):
        return None  # sparse tensors have kernels of their own, which the key would go past
    return next((key for key in _KEYS if func.has_kernel_for_dispatch_key(key)), None)


def _argument(func: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return kwargs[name] if name in kwargs else args[i] if i < len(args) else argument.default_value
    return None


def waits_for_device(func: Any, args: tuple, kwargs: dict[str, Any], on_device: Any) -> bool:
    """Returns True if the host has to wait for `func`: its result is a number, its size depends on values, or its
    kernel reads an argument.

    `on_device(tensor)` is True for a tensor on the device.
    """
    name = func.name()
    if func._schema.name in _INDEXED:
        return _waits_for_mask(name, args, kwargs, on_device)
    if name == "aten::repeat_interleave.Tensor":
        return _argument(func, "output_size", args, kwargs) is None
    if name in _NO_WAIT:
        return False
    if (read := reads(torch.__version__).get(name)) is not None:
        value = _argument(func, read.argument, args, kwargs)
        is_tensor = isinstance(value, Tensor) and (value.dim() == 0 or not read.numbers_only)
        return is_tensor and bool(on_device(value))
    return any(tag in _WAITING_TAGS for tag in func.tags)


def misplaced(func: Any, args: tuple, kwargs: dict[str, Any], on_host: Any) -> list[tuple[str, Tensor]]:
    """Returns the tensors, and their arguments' names, for which a kernel of mps raises because they are on the host.

    It takes numbers of the host, which are tensors without dimensions, and indices; copies are between devices.
    """
    if func._schema.name == "aten::copy_":
        return []
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "indices" and func._schema.name in _INDEXED:
            continue
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        value = kwargs.get(argument.name, args[i] if i < len(args) else None)
        for tensor in tensors_in(value):
            if (tensor.dim() or is_written) and on_host(tensor):
                found.append((argument.name, tensor))
    return found


_WAITING_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
# The tag of these is for arguments that are numbers of the host: the size of the result depends on them.
_NO_WAIT = {"aten::linalg_lstsq", "aten::linalg_lstsq.out"}
_INDEXED = {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


def _waits_for_mask(name: str, args: tuple, kwargs: dict[str, Any], on_device: Any) -> bool:
    """Returns True if an index is a boolean mask, which must be counted; integers need no count."""
    indices = args[1] if len(args) > 1 else kwargs.get("indices", ())
    masks = [index for index in indices if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)]
    if not any(on_device(mask) for mask in masks):
        return False
    if "put" not in name:
        return True
    values = args[2] if len(args) > 2 else kwargs.get("values")
    # One number of the host, put where a mask says, is masked_fill_, which needs no count.
    return not (isinstance(values, Tensor) and values.numel() == 1 and not on_device(values))


@cache
def _tensors_only(func: Any) -> tuple[int, ...]:
    """Returns the positions of the arguments of `func` that have to be tensors and not numbers."""
    if torch._C._should_allow_numbers_as_tensors(func._schema.name.split("::")[-1]):
        return ()
    return tuple(i for i, argument in enumerate(func._schema.arguments) if str(argument.type) == "Tensor")


def numbers_to_tensors(func: Any, args: tuple) -> tuple:
    """Returns `args` as `func` takes them: torch shows a number that a kernel made a tensor of as a number again."""
    wrong = [i for i in _tensors_only(func) if i < len(args) and isinstance(args[i], (bool, int, float, complex))]
    if not wrong:
        return args
    return tuple(torch.tensor(value) if i in wrong else value for i, value in enumerate(args))
