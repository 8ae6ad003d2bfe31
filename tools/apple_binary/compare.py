"""Compares the operator table of a release of torch with the registrations of its build for Apple silicon."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mps_trainer.check import OperatorTable
from mps_trainer.devices.facts import parse_version
from mps_trainer.tools.check.mps_kernels import compiles_graphs
from mps_trainer.tools.check.table import read_operator_table

from .callers import GRAPH, READ, operators_reaching
from .macho import MachO
from .registrations import Registration, registrations
from .wheel import LIBRARY, TABLE, Wheel

SPARSE = ("SparseMPS", "SparseCsrMPS")


@dataclass(frozen=True)
class Known:
    """An expected difference between table and build, with the reason."""

    operators: tuple[str, ...]
    reason: str


KNOWN = (
    Known(
        (
            "aten::embedding_renorm_",
            "aten::linalg_svd",
            "aten::linalg_svd.U",
            "aten::col2im",
            "aten::upsample_nearest3d.vec",
        ),
        "MPSFallback.mm registers it by hand, to run on the CPU whatever PYTORCH_ENABLE_MPS_FALLBACK says. The "
        "package lists it in always_falls_back().",
    ),
    Known(
        ("aten::_slow_conv2d_forward",),
        "MPSFallback.mm registers a function that only raises an error: convolutions of tensors on mps never reach "
        "it. So the table counts it as an operator without a kernel.",
    ),
)


# Kernels that torch picks from a table at run time, and linear_backward, which calls mm: `callers` cannot follow them.
_NOT_FOLLOWED = {
    "acosh",
    "asinh",
    "atanh",
    "ceil",
    "floor",
    "isneginf",
    "isposinf",
    "linear_backward",
    "trunc",
    "where",
}


@dataclass(frozen=True)
class Comparison:
    """Holds the registrations of one build for mps and their differences from the operator table."""

    torch_version: str
    wheel: str
    sha256: str
    registered: dict[str, int]  # by key of the dispatcher
    by_hand: list[str]  # registered for MPS, and not generated from the table
    fall_back: list[str]  # those of `by_hand` that always run on the CPU
    native: int  # in the table
    only_registered: list[str]
    only_in_table: list[str]
    autocast: dict[str, str]  # the policy of each operator
    graphs: tuple[str, ...] = ()  # the operators whose kernels compile graphs
    other_graphs: tuple[str, ...] = ()  # those of which the package says something else
    reads: tuple[str, ...] = ()  # the operators whose kernels may read a value of a tensor

    @property
    def explained(self) -> dict[str, str]:
        """Returns the reason of each expected difference."""
        reasons = {name: known.reason for known in KNOWN for name in known.operators}
        return {name: reasons[name] for name in self.only_registered if name in reasons}

    @property
    def unexplained(self) -> list[str]:
        others = [name for name in self.only_registered if name not in self.explained] + self.only_in_table
        return others + list(self.other_graphs)

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison in types that JSON has."""
        return {
            "torch_version": self.torch_version,
            "wheel": self.wheel,
            "sha256": self.sha256,
            "registered": dict(self.registered),
            "by_hand": list(self.by_hand),
            "always_fall_back": list(self.fall_back),
            "native_in_table": self.native,
            "only_registered": list(self.only_registered),
            "only_in_table": list(self.only_in_table),
            "explained": self.explained,
            "unexplained": self.unexplained,
            "autocast": dict(self.autocast),
            "graphs": list(self.graphs),
            "reads": list(self.reads),
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{count} for {key}" for key, count in self.registered.items())
        lines = [
            f"torch {self.torch_version}: {self.wheel}",
            f"sha256 {self.sha256}",
            f"Registered: {counts}.",
            f"By hand for MPS: {', '.join(self.by_hand) or 'none'}.",
            f"Always on the CPU: {', '.join(self.fall_back) or 'none'}.",
            f"Native in the operator table: {self.native}.",
            f"Registered for mps and not native in the table: {len(self.only_registered)}; "
            f"native in the table and not registered: {len(self.only_in_table)}.",
        ]
        lines += [f"  {name}: {reason}" for name, reason in self.explained.items()]
        lines += [f"  {name}: UNEXPLAINED" for name in self.unexplained]
        lines.append(f"Compile graphs: {len(self.graphs)}. May read values: {', '.join(self.reads) or 'none'}.")
        policies = Counter(self.autocast.values())
        lines.append("Autocast: " + ", ".join(f"{count} {policy}" for policy, count in policies.most_common()) + ".")
        return "\n".join(lines)


def compare_wheel(version: str, path: Path) -> Comparison:
    """Returns the comparison for a downloaded wheel."""
    wheel = Wheel(path)
    library = MachO(wheel.read(LIBRARY))
    found = registrations(library)
    graphs, read = (operators_reaching(library, found, symbol) for symbol in (GRAPH, READ))
    listed = {each.operator for each in found if each.key == "MPS" and compiles_graphs(each.operator, version)}
    # the package takes older releases for 2.13
    differing = graphs ^ listed if parse_version(version) >= (2, 13) else set()
    others = {name for name in differing if re.split(r"::|_?\.|_$", name)[1] not in _NOT_FOLLOWED}
    table = read_operator_table(wheel.read(TABLE), version)
    compared = compare(table, found, wheel=path.name, sha256=wheel.sha256)
    return replace(
        compared, graphs=tuple(sorted(graphs)), other_graphs=tuple(sorted(others)), reads=tuple(sorted(read))
    )


def compare(table: OperatorTable, found: Iterable[Registration], wheel: str = "", sha256: str = "") -> Comparison:
    """Returns how `table` differs from the registrations found in the build of the same release."""
    found = list(found)
    dense = {registration.operator for registration in found if registration.key == "MPS"}
    sparse = {registration.operator for registration in found if registration.key in SPARSE}
    by_hand = [registration for registration in found if registration.key == "MPS" and not registration.is_generated]
    return Comparison(
        torch_version=table.torch_version,
        wheel=wheel,
        sha256=sha256,
        registered=dict(Counter(registration.key for registration in found).most_common()),
        by_hand=sorted(registration.operator for registration in by_hand),
        fall_back=sorted(registration.operator for registration in by_hand if registration.falls_back),
        native=len(table.native),
        only_registered=sorted(dense - table.native),
        # Operators for sparse tensors alone count as native too.
        only_in_table=sorted(table.native - dense - sparse),
        autocast={
            registration.operator: registration.policy or "unknown"
            for registration in sorted(found, key=lambda registration: registration.operator)
            if registration.key == "AutocastMPS"
        },
    )
