"""Reads the operators that a build of torch registers for mps from its library.

`TORCH_LIBRARY_IMPL(aten, MPS, m) { ... }` in C++ becomes a function `TORCH_LIBRARY_IMPL_init_aten_MPS_<number>`, which
calls torch::Library::_impl(name, kernel) for each operator. Register x1 then holds the address of the name. The kernel
is among the functions whose addresses the code took since the call before, or, where it took none, among those that it
keeps in registers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .arm64 import KEPT, Call, Reference, decode
from .macho import MachO, MachOError

# Mangled; the parts of such a function that handle errors have names that end in ".cold.1".
_INIT = re.compile(r"TORCH_LIBRARY_IMPL_init_(\w+?)_([A-Za-z]+)_\d+ERN5torch7LibraryE$")
_IMPL = "5torch7Library5_implE"
_NAME = 1  # the register

# The order of at::autocast::CastPolicy, which is a number in the symbol of the kernel.
POLICIES = ("lower_precision_fp", "fp32", "fp32_set_opt_dtype", "fp32_append_dtype", "promote")
_POLICY = re.compile(r"8autocast13WrapFunction_ILNS0_10CastPolicyE(\d)E")


@dataclass(frozen=True)
class Registration:
    """One operator under one key of the dispatcher; `kernels` are the functions that its registration names."""

    operator: str  # "aten::add.out"
    key: str  # "MPS", "SparseMPS", "SparseCsrMPS", "AutocastMPS"
    kernels: tuple[str, ...]  # mangled

    @property
    def falls_back(self) -> bool:
        """Returns True if the kernel is the CPU fallback."""
        return any("mps_fallback" in kernel for kernel in self.kernels)

    @property
    def is_generated(self) -> bool:
        """Returns True if torchgen generated the registration from the operator table."""
        return any(f"wrapper_{self.key}_" in kernel for kernel in self.kernels)

    @property
    def policy(self) -> str | None:
        """Returns the casting policy of autocast, or None for an operator without one."""
        found = [_POLICY.search(kernel) for kernel in self.kernels]
        return next((POLICIES[int(match[1])] for match in found if match), None)


def registrations(library: MachO, device: str = "MPS") -> list[Registration]:
    """Returns everything that the library registers for the device, in the order of its code.

    Args:
        library: libtorch_cpu.dylib.
        device: the end of the keys to look for: "MPS" is that of "MPS", "SparseMPS", "SparseCsrMPS" and "AutocastMPS".

    Raises:
        MachOError: if a registration cannot be read. None is left out silently.
    """
    found: list[Registration] = []
    for symbol, address in library.symbols_with("TORCH_LIBRARY_IMPL_init_"):
        match = _INIT.search(symbol)
        if match is not None and match[2].endswith(device):
            found += _registered_by(library, address, namespace=match[1], key=match[2])
    return found


def _registered_by(library: MachO, address: int, namespace: str, key: str) -> list[Registration]:
    found: list[Registration] = []
    kernels: list[str] = []
    for event in decode(library.function(address), address):
        symbol = library.symbol_at(event.address)
        if isinstance(event, Call) and symbol is not None and _IMPL in symbol:
            name = library.string(event.registers[_NAME]) if _NAME in event.registers else None
            if name is None:
                raise MachOError(f"the operator registered for {key} at {event.at:#x} has no name that can be read")
            if not kernels:
                kept = (library.symbol_at(value) for register, value in event.registers.items() if register >= KEPT)
                kernels = [kernel for kernel in kept if kernel is not None]
            found.append(Registration(name if "::" in name else f"{namespace}::{name}", key, tuple(kernels)))
            kernels = []
        elif isinstance(event, Reference) and symbol is not None:
            kernels.append(symbol)
    return found
