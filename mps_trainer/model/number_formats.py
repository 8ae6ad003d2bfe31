"""Names the tensor in a number format that mps does not have: float64 or complex128."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import traceback

import torch
from torch import nn

from ..errors import UnsupportedFormatError, explain

REFUSED_ON_MPS = {torch.float64: torch.float32, torch.complex128: torch.complex64}  # with mps's formats

_ERROR = re.compile(r"(?:Cannot convert a MPS Tensor to|Trying to convert) (float64|Double|ComplexDouble)\b")
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_NOT_THE_MODEL = (os.path.dirname(torch.__file__) + os.sep, str(contextlib.__file__))


def check_formats(model: nn.Module, device: torch.device) -> None:
    """Raises UnsupportedFormatError if `device` does not have the format of a parameter or buffer of `model`."""
    if device.type != "mps":
        return
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    found = [(name, tensor) for name, tensor in tensors if tensor.dtype in REFUSED_ON_MPS]
    if not found:
        return
    name, tensor = found[0]
    kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
    dtype, other = _name(tensor.dtype), _name(REFUSED_ON_MPS[tensor.dtype])
    owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
    # float() does not change complex numbers
    cast = "Call model.float() before you give it to the Trainer, or" if tensor.is_floating_point() else "What to do:"
    raise UnsupportedFormatError(
        f"mps has no {dtype}, and {kind} {name!r} of {type(model).__name__} is {dtype} ({len(found)} such "
        f"tensor{'s' * (len(found) > 1)} in all). {cast} make the {kind} {other} where {owner} creates it."
    )


def explain_format(error: BaseException) -> None:
    """Adds the line that made the tensor to torch's `error` for a format that mps does not have."""
    match = _ERROR.search(str(error)) if isinstance(error, TypeError) else None
    if match is None:
        return
    dtype = torch.complex128 if match[1] == "ComplexDouble" else torch.float64
    frames = traceback.extract_tb(error.__traceback__)
    inner = next((each for each in reversed(frames) if not each.filename.startswith(_NOT_THE_MODEL)), None)
    if inner is None or inner.filename.startswith(_PACKAGE):  # a gradient, whose error does not name the model's line
        return
    file = os.sep.join(inner.filename.split(os.sep)[-2:])
    explain(
        error,
        f"{file}:{inner.lineno} makes a {_name(dtype)} tensor on mps, which has no such format: `{inner.line}`. Ask "
        f"for {_name(REFUSED_ON_MPS[dtype])} there.",
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
