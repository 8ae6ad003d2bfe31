"""Lists the operators with an MPS kernel, from the operator table of the installed torch.

`torchgen/packaged/ATen/native/native_functions.yaml` is what torch's own kernels are registered from, so the answer
holds for the user's torch, on any machine. Names come from the dispatcher: "aten::add.Tensor", "aten::linear".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from ...devices.facts import parse_version

OPERATORS = "packaged/ATen/native/native_functions.yaml"  # in torchgen's folder

# These are registered by hand to run on the CPU whatever the fallback switch says (torch, MPSFallback.mm), until the
# release that brought each a kernel of its own.
_FALLS_BACK_BEFORE: dict[str, tuple[int, ...] | None] = {
    "aten::embedding_renorm_": None,
    "aten::linalg_svd": (2, 14),
    "aten::linalg_svd.U": (2, 14),
    "aten::col2im": (2, 8),
    "aten::upsample_nearest3d.vec": (2, 8),
}

# The dispatcher looks here for a kernel when a device has none of its own, in this order.
COMPOSITE_KEYS = ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd", "CompositeImplicitAutograd")


class Support(str, Enum):
    """The support of an operator on mps."""

    NATIVE = "native"  # an MPS kernel runs
    COMPOSITE = "composite"  # made of other operators, each of which has to be asked about in its turn
    FALLS_BACK = "falls back"  # the CPU kernel runs, with a copy of every tensor there and back
    FAILS = "fails"  # NotImplementedError


@dataclass(frozen=True)
class OperatorTable:
    """The operators of one torch release.

    `native` have an MPS kernel or delegate to one that has; `composite` have none and are made of other operators;
    `cpu` have neither.
    """

    torch_version: str
    native: frozenset[str]
    composite: frozenset[str]
    cpu: frozenset[str]

    def support(self, name: str, fallback: bool = False) -> Support:
        """Returns how mps runs the operator `name`; `fallback`: was PYTORCH_ENABLE_MPS_FALLBACK on at the start.

        An operator that the table does not list (a variant that torch generates, torchvision's, one of your own) has
        the kernels that this process registered for it; one that neither has an MPS kernel nor is composite fails.
        """
        if name in self.native:
            return Support.NATIVE
        if name in always_falls_back(self.torch_version):
            return Support.FALLS_BACK
        if name in self.composite:
            return Support.COMPOSITE
        registered = None if name in self.cpu else _registered(name)
        if registered is not None:
            return registered
        return Support.FALLS_BACK if fallback else Support.FAILS


@cache
def always_falls_back(torch_version: str) -> frozenset[str]:
    """Returns the operators that this torch runs on the CPU with the fallback switch on or off."""
    version = parse_version(torch_version)
    return frozenset(name for name, before in _FALLS_BACK_BEFORE.items() if before is None or version < before)


def _registered(name: str) -> Support | None:
    """Returns the support that this process registered for `name` on mps; None if there is only the fallback.

    Asks for kernels one by one: what the dispatcher computes for the key as a whole is the fallback's kernel for every
    operator, once a fallback is registered there, as a simulated mps device does.
    """
    if _has_kernel(name, "MPS"):
        return Support.NATIVE
    return Support.COMPOSITE if any(_has_kernel(name, key) for key in COMPOSITE_KEYS) else None


def _has_kernel(name: str, key: str) -> bool:
    import torch

    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
    except RuntimeError:  # no such operator
        return False


@cache
def operator_table() -> OperatorTable:
    """Returns the table of the installed torch, in which kernels that this process registered are native too.

    A few are in no file: torch registers them from Python, on every machine (torch._refs.linalg, 2.13.0).
    """
    import torch
    import torchgen

    version = str(torch.__version__)
    entries = (Path(torchgen.__file__).parent / OPERATORS).read_bytes()
    table = read_operator_table(entries, version)
    others = (table.composite | table.cpu) - always_falls_back(version)
    by_hand = {name for name in others if _has_kernel(name, "MPS")}
    return OperatorTable(version, table.native | by_hand, table.composite - by_hand, table.cpu - by_hand)


def read_operator_table(native_functions: bytes, torch_version: str) -> OperatorTable:
    """Returns what `native_functions.yaml` of the torch of that version says.

    An operator without an entry of its own has what its structured delegate has.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # takes 0.2 s, and without libyaml 1 s
    entries = yaml.load(native_functions, loader)
    keys = {_name(entry["func"]): set(", ".join(entry.get("dispatch", ())).split(", ")) for entry in entries}
    kinds: dict[str, set[str]] = {"native": set(), "composite": set(), "cpu": set()}
    for entry in entries:
        name, delegate = _name(entry["func"]), entry.get("structured_delegate")
        own = keys[name]
        if "MPS" in own or (delegate is not None and "MPS" in keys[delegate]):
            kind = "native"
        # The generated wrapper of a structured operator is composite: it runs on mps as far as its out= variant does.
        elif "dispatch" not in entry or delegate is not None or any(key.startswith("Composite") for key in own):
            kind = "composite"
        # Made for sparse tensors alone, and there for those of mps.
        elif "CPU" not in own and not own.isdisjoint(("SparseMPS", "SparseCsrMPS")):
            kind = "native"
        else:
            kind = "cpu"
        kinds[kind].add(f"aten::{name}")
    return OperatorTable(torch_version, *map(frozenset, kinds.values()))


def _name(signature: str) -> str:
    return signature.partition("(")[0]
