"""Lists the operators with an MPS kernel, from the operator table of the installed torch.

`torchgen/packaged/ATen/native/native_functions.yaml` is what torch's own kernels are registered from, so the answer
holds for the user's torch, on any machine. Names are those of the dispatcher: "aten::add.Tensor", "aten::linear".
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from ..devices.facts import parse_version
from ..utils.home import cache_folder

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

_KINDS = ("native", "composite", "cpu")
_FORMAT = 4  # changes with the file in the cache and with the rules for native operators


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

        An operator that the table does not list (torchvision's, one of your own) has the kernels that this process
        registered for it; one that neither has an MPS kernel nor is composite fails.
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
    """Returns the table of the installed torch, from the cache folder or, the first time, parsed (about a second)."""
    import torch

    if (folder := cache_folder()) is None:
        return parse_operator_table()
    build = (torch.version.git_version or "unknown")[:12]
    path = folder / f"operators-{_FORMAT}-{torch.__version__}-{build}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return OperatorTable(str(kept["torch_version"]), *(frozenset(map(str, kept[kind])) for kind in _KINDS))
    except (OSError, ValueError, KeyError, TypeError):  # none, or one that a process is writing or left unfinished
        table = parse_operator_table()
    with contextlib.suppress(OSError):  # a read-only home costs the next process a second, and nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(table), default=sorted), encoding="utf-8")
    return table


def parse_operator_table(folder: Path | None = None, torch_version: str | None = None) -> OperatorTable:
    """Parses torchgen's operator table. An operator without an entry of its own has what its structured delegate has.

    A few kernels are in no entry: torch registers them from Python, on every machine (torch._refs.linalg, 2.13.0).

    Args:
        folder: has the native_functions.yaml and tags.yaml of another torch, of which `torch_version` is the version.
            Kernels that this process registered do not count then. None: those of the installed torch.
    """
    import torch
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DispatchKey

    is_installed = folder is None
    folder = folder or Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    mps = parsed.backend_indices[DispatchKey.MPS]
    dense = parsed.backend_indices[DispatchKey.CPU]
    sparse = [parsed.backend_indices[key] for key in (DispatchKey.SparseMPS, DispatchKey.SparseCsrMPS)]
    by_name = {str(function.func.name): function for function in parsed.native_functions}
    kinds: dict[str, set[str]] = {kind: set() for kind in _KINDS}
    for name, function in by_name.items():
        delegate = function.structured_delegate
        may_be_by_hand = is_installed and f"aten::{name}" not in always_falls_back(torch.__version__)
        by_hand = may_be_by_hand and _has_kernel(f"aten::{name}", "MPS")
        if by_hand or mps.has_kernel(function) or (delegate is not None and mps.has_kernel(by_name[str(delegate)])):
            kind = "native"
        # The generated wrapper of a structured operator is composite: it runs on mps as far as its out= variant does.
        elif function.has_composite_kernel or delegate is not None:
            kind = "composite"
        # Made for sparse tensors alone, and there for those of mps.
        elif not dense.has_kernel(function) and any(index.has_kernel(function) for index in sparse):
            kind = "native"
        else:
            kind = "cpu"
        kinds[kind].add(f"aten::{name}")
    version = torch_version or torch.__version__
    return OperatorTable(version, *map(frozenset, kinds.values()))
