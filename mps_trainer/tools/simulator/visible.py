"""Makes torch's Python code see the device, in builds without MPS and in caches of its absence."""

from __future__ import annotations

import sys
from typing import Any

import torch

# Functions that remember whether there is an mps device, by module. They are asked anew after each switch.
_REMEMBERING = {
    "torch.backends.mps": ("is_available", "is_macos_or_newer", "is_macos13_or_newer"),
    "transformers.utils.import_utils": ("is_torch_mps_available",),
    "accelerate.utils.imports": ("is_mps_available",),
}


# torch from 2.14 on has streams of mps, of which the simulated device has the default one.
_STREAMS = ("current_stream", "default_stream")
_own_streams = {name: getattr(torch.mps, name) for name in _STREAMS if hasattr(torch.mps, name)}


def set_visible(visible: bool) -> None:
    """Makes torch and libraries with cached answers report an mps device, or none."""
    for name, own in _own_streams.items():
        setattr(torch.mps, name, torch.accelerator.current_stream if visible else own)
    torch._C._has_mps = visible
    torch.backends.mps.simulated = visible  # type: ignore[attr-defined]
    if visible:
        torch._C._mps_compileShader = _refuse_shader  # type: ignore[attr-defined]
        torch.UntypedStorage.__new__ = _new_storage  # type: ignore[method-assign, assignment]
    else:
        del torch._C._mps_compileShader  # type: ignore[attr-defined]
        del torch.UntypedStorage.__new__
    for module, names in _REMEMBERING.items():
        for name in names:
            forget = getattr(getattr(sys.modules.get(module), name, None), "cache_clear", None)
            if forget is not None:
                forget()


def _refuse_shader(source: str) -> None:
    raise NotImplementedError(
        "A Metal shader cannot be compiled for the simulated mps device, which runs on the CPU. torch.compile makes "
        'such shaders by default: use torch.compile(backend="aot_eager") here, or leave torch.compile out and try it '
        "on a Mac."
    )


def _new_storage(cls: type, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
    """Makes storages on mps, which torch.load and storage.clone() ask for by the name of the device.

    torch's own constructor knows the devices that it was built for.
    """
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "mps" and all(isinstance(size, int) for size in args):
        return torch.empty(args[:1] or (0,), dtype=torch.uint8, device="mps").untyped_storage()
    return torch._C.StorageBase.__new__(cls, *args, **kwargs)
