"""Watches Python calls that ask for a device or move data to another, which run no operator on CPU tensors."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from ...utils.nested import tensors_in
from .as_mps import MPS, cpu_for_mps
from .recorder import Recorder
from .residency import Residency


class Recording(Protocol):
    """The part of a tracer that `HostCalls` uses."""

    recorder: Recorder
    residency: Residency
    is_paused: bool

    def having(self, **values: bool) -> AbstractContextManager[None]: ...
    def read(self, what: str) -> None: ...
    def refuse(self, what: str, remedy: str) -> None: ...


# What a tensor of the host answers. `.to()` tells it by identity from other CPU devices, which a script takes where it
# finds no mps.
_HOST = torch.device("cpu")
# What a tensor on the device answers.
_ON_MPS: dict[Any, Any] = {
    Tensor.device.__get__: MPS,
    Tensor.is_mps.__get__: True,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: False,  # type: ignore[attr-defined]
    Tensor.get_device: MPS.index,
}
# Each brings the values of a tensor to the host.
_READS = {
    Tensor.cpu: ".cpu()",
    Tensor.tolist: ".tolist()",
    Tensor.__repr__: "print(tensor)",
    Tensor.__format__: "format(tensor)",
}
# Each raises TypeError for a tensor on the device.
_OF_HOST_ALONE: dict[Any, str] = {Tensor.numpy: ".numpy()", Tensor.__array__: "numpy.asarray(tensor)"}
# Each makes a tensor of values of the host, which a copy that blocks brings to the device.
_COPYING_FACTORIES = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
# The attribute of the tracer that is True inside each of these.
_INSIDE = {
    # On the CPU these count in float64, from torch 2.14 on, and on mps in float32.
    torch.quantile: "float64_is_of_the_cpu",
    torch.nanquantile: "float64_is_of_the_cpu",
    Tensor.quantile: "float64_is_of_the_cpu",
    Tensor.nanquantile: "float64_is_of_the_cpu",
    # These want no singular vectors. The operator below them fails, where torch.linalg.svd is registered to fall back.
    torch.linalg.svdvals: "singular_values_only",
    torch.linalg.cond: "singular_values_only",
    torch.linalg.norm: "singular_values_only",
    torch.linalg.matrix_norm: "singular_values_only",
    torch.linalg.matrix_rank: "singular_values_only",
    torch.norm: "singular_values_only",
    torch.nuclear_norm: "singular_values_only",
}


class HostCalls(TorchFunctionMode):
    """Reports reads, copies to the device, and the device of new tensors to the tracer."""

    def __init__(self, tracer: Recording) -> None:
        super().__init__()
        self.tracer = tracer
        self._factories = _device_constructors()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self.tracer.is_paused:
            return func(*args, **kwargs)
        if func in _ON_MPS:
            return self._placement(func, args[0])
        if func in _READS:
            return self._read(func, args, kwargs)
        if func in _OF_HOST_ALONE:
            return self._to_numpy(func, args, kwargs)
        if func is Tensor.to or func is Tensor.type_as:
            return self._to(args, kwargs)
        device = kwargs.get("device")
        args = tuple(map(_cpu_for_mps_device, args))
        if device is not None:
            kwargs = {**kwargs, "device": cpu_for_mps(device)}
        if func in self._factories:
            # Optimizers of torch name the CPU for tensors that are to stay on the host.
            return self._make(func, args, kwargs, device not in (None, "cpu") and device is not _HOST)
        if func is Tensor.__getitem__ or func is Tensor.__setitem__:
            # Numbers to be put are made tensors on the device, lists of indices on the host.
            on_device = func is Tensor.__setitem__ and self.tracer.residency.on_device(args[0])
            with self.tracer.having(factory_on_device=on_device):
                return func(*args, **kwargs)
        if func is Tensor.new_tensor:
            on_device = device is not None or self.tracer.residency.on_device(args[0])
            return self._make(func, args, kwargs, on_device)
        if func is torch.nn.functional.one_hot:
            return self._one_hot(args, kwargs)
        if func is torch.nn.functional.linear:
            self._check_linear(*args, **kwargs)
        with self.tracer.having(**{_INSIDE[func]: True}) if func in _INSIDE else contextlib.nullcontext():
            return func(*args, **kwargs)

    def _placement(self, func: Any, tensor: Tensor) -> Any:
        """Returns what the tensor would say about its device."""
        value = func(tensor)
        if torch.device("meta") == value or tensor.is_meta:
            return value
        if self.tracer.residency.on_device(tensor):
            return _ON_MPS[func]
        is_known = self.tracer.residency.on_host(tensor)
        return _HOST if is_known and isinstance(value, torch.device) else value

    def _to_numpy(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if self.tracer.residency.on_device(args[0]):
            self.tracer.refuse(f"{_OF_HOST_ALONE[func]} of a tensor on mps", "Copy it to the host first: .cpu().")
        with self.tracer.having(is_paused=True):
            return func(*args, **kwargs)

    def _check_linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        needs_gradient = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
        if weight.dim() == 1 and needs_gradient and self.tracer.residency.on_device(input):
            self.tracer.refuse(
                "gradient of a linear layer with a weight of one dimension",
                "Make the weight a matrix of one row: weight.unsqueeze(0) (pytorch issue 189565).",
            )

    def _read(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Records a read; what comes back as a tensor is a copy on the host, as it would be."""
        residency, tensor = self.tracer.residency, args[0]
        if not residency.on_device(tensor):
            return func(*args, **kwargs)
        self.tracer.read(_READS[func])
        with self.tracer.having(is_paused=True):
            result = func(*args, **kwargs)
            if not isinstance(result, Tensor):
                return result
            return self._copy(result, tensor, on_device=False)

    def _copy(self, result: Tensor, source: Tensor, on_device: bool) -> Tensor:
        """Returns `result` in storage of its own, noted as being on the device or not."""
        # A leaf that is to gather a gradient stays what it is: users hold on to it.
        if result is source and not (source.is_leaf and source.requires_grad):
            result = source.clone()
        self.tracer.residency.put([result], on_device)
        return result

    def _to(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        tensor, target = args[0], target_of(args[1:], kwargs)
        residency = self.tracer.residency
        args = (tensor, *map(cpu_for_mps, args[1:]))
        if "device" in kwargs:
            kwargs = {**kwargs, "device": cpu_for_mps(kwargs["device"])}
        if target is None or str(target) == "meta":
            return tensor.to(*args[1:], **kwargs)
        if isinstance(target, Tensor):
            to_host = not residency.on_device(target)
        else:
            # Code that names the CPU brings a value to the host, and so does the device of a tensor there. Other
            # devices come from a model, from arguments, or from a script that looked for mps before.
            to_host = target is _HOST or (target == "cpu" and residency.on_device(tensor))
        if residency.on_device(tensor):
            if not to_host:
                return tensor.to(*args[1:], **kwargs)
            self.tracer.read('.to("cpu")')
        elif not to_host and not _non_blocking(args[1:], kwargs):
            self.tracer.read(".to(device)")
        with self.tracer.having(is_paused=True):
            result = self._copy(tensor.to(*args[1:], **kwargs), tensor, on_device=not to_host)
        if not to_host:
            self.tracer.recorder.moved(result)
        return result

    def _make(self, func: Any, args: tuple, kwargs: dict[str, Any], on_device: bool) -> Any:
        tracer = self.tracer
        with tracer.having(factory_on_device=on_device):
            result = func(*args, **kwargs)
        if on_device and func in _COPYING_FACTORIES:
            tracer.read(f"{func.__name__}() on the device")
        tensors = tensors_in(result)
        tracer.residency.put(tensors, on_device)
        for tensor in tensors if on_device else ():
            tracer.recorder.moved(tensor)
        return result

    def _one_hot(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Records a read without `num_classes`; the values are checked on the CPU alone."""
        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
        if classes == -1 and self.tracer.residency.on_device(args[0]):
            self.tracer.read("one_hot without num_classes")
        with self.tracer.having(reads_are_free=True):
            return torch.nn.functional.one_hot(*args, **kwargs)


def target_of(args: tuple, kwargs: dict[str, Any]) -> Any:
    """Returns the target of `.to`: a string, a torch.device, another tensor; None for a number format alone."""
    if "device" in kwargs or "other" in kwargs:
        return kwargs.get("device", kwargs.get("other"))
    first = args[0] if args else None
    return None if isinstance(first, torch.dtype) else first


def _cpu_for_mps_device(value: Any) -> Any:
    return cpu_for_mps(value) if isinstance(value, torch.device) else value


def _non_blocking(args: tuple, kwargs: dict[str, Any]) -> bool:
    """Returns the argument of `.to` of that name: by position it follows the target and, if it is given, the dtype."""
    flags = (value for value in args if isinstance(value, bool))
    return bool(kwargs.get("non_blocking", next(flags, False)))
