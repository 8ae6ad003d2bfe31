"""Reports the operators, number formats and waits that a trace found, as a table, a dictionary and an exit code."""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from ...devices.probes import FALLBACK
from ...utils.text import counted
from .mps_kernels import compiles_graphs
from .source import SourceLine
from .table import Support

_LINES_SHOWN = 3  # a table that is not verbose shows so many lines of a library
_NAMES_SHOWN = 3  # the verdict names so many operators
# File, text of the condition, and what turns the wait off.
_KNOWN = [
    (
        os.path.join("transformers", "trainer.py"),
        "logging_nan_inf_filter",
        "logging_nan_inf_filter=False turns it off. mps_trainer's Trainer does not have this wait.",
    ),
    (
        os.path.join("transformers", "masking_utils.py"),
        "padding_mask",
        "mps_trainer's Trainer does not have this wait: import mps_trainer.replace_transformers.",
    ),
]
_WIDTHS = (12, 32, 24, 29)  # the four columns have 100 characters with the gaps between them


@dataclass(frozen=True)
class OperatorUse:
    """One operator in one phase of the step ("forward", "backward", "optimizer", "evaluation").

    `distinct_shapes` counts the combinations of shapes and number formats of its tensors. `where`
    is the line that called it first; in backward, the line whose gradient it is.
    """

    name: str
    support: Support
    phase: str
    calls: int
    distinct_shapes: int
    where: SourceLine | None


@dataclass(frozen=True)
class DtypeProblem:
    """A tensor in a number format that mps refuses with a TypeError: float64 or complex128.

    `what` names the tensor: a parameter or buffer with its module, a column of the batch, or an operator. One that
    does not fail is converted on its way to the device.
    """

    what: str
    dtype: str
    fails: bool
    remedy: str
    where: SourceLine | None = None
    calls: int = 1


@dataclass(frozen=True)
class RefusedCall:
    """A call that raises on mps because of its arguments, such as tensors on two devices."""

    what: str
    phase: str
    remedy: str
    where: SourceLine | None
    calls: int = 1


@dataclass(frozen=True)
class LargeProduct:
    """A matrix product that M1 and M2 may compute wrong, because it sums 32,767 numbers or more.

    `inner` is how many it sums. See `devices.large_products`.
    """

    name: str
    phase: str
    calls: int
    inner: int
    batched: bool
    where: SourceLine | None


@dataclass(frozen=True)
class BlockingRead:
    """A line where the host waits for the device: it needs a value or the size of a result, or copies and blocks."""

    what: str  # the operator or method
    phase: str
    calls: int
    where: SourceLine | None


@dataclass(frozen=True)
class CoverageReport:
    """Lists the operators, number formats and waits of a trace on mps.

    Args:
        torch_version: the torch whose operator table this holds for.
        fallback: whether PYTORCH_ENABLE_MPS_FALLBACK is taken as on.
        operators: one entry for each operator and phase.
        refused_calls: calls that raise because of their arguments, such as tensors on two devices.
        large_products: matrix products that M1 and M2 may compute wrong; they leave the step ready.
        own_trainer: whether this package's Trainer made the step. It is then no remedy.
        batch_shapes: the distinct shapes of the inputs of the model in training, by argument; on mps each is another
            set of graphs.
        notes: what the trace did not look at.
    """

    torch_version: str
    fallback: bool
    own_trainer: bool = False
    operators: list[OperatorUse] = field(default_factory=list)
    refused_calls: list[RefusedCall] = field(default_factory=list)
    dtype_problems: list[DtypeProblem] = field(default_factory=list)
    large_products: list[LargeProduct] = field(default_factory=list)
    blocking_reads: list[BlockingRead] = field(default_factory=list)
    batch_shapes: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """True if the step would run on a Mac: no operator, call or number format fails."""
        formats = any(problem.fails for problem in self.dtype_problems)
        return not (self.with_support(Support.FAILS) or self.refused_calls or formats)

    @property
    def exit_code(self) -> int:
        """0 when ready, 1 when something would fail."""
        return 0 if self.ready else 1

    def with_support(self, support: Support) -> list[OperatorUse]:
        """Returns the operators of one kind, the most called first."""
        return sorted((use for use in self.operators if use.support is support), key=lambda use: -use.calls)

    @property
    def graphs(self) -> int:
        """The graphs that mps compiles: one for each shape of the operators whose kernels build one."""
        compiling = (use for use in self.operators if compiles_graphs(use.name, self.torch_version))
        return sum(use.distinct_shapes for use in compiling if use.support is Support.NATIVE)

    @property
    def verdict(self) -> str:
        """Returns a sentence that says whether the step would train on a Mac, and what to do if not."""
        failing = [use.name for use in self.with_support(Support.FAILS)]
        failing += [call.what for call in self.refused_calls]
        failing += [f"{problem.what} ({problem.dtype})" for problem in self.dtype_problems if problem.fails]
        if failing:
            return f"this step would stop on a Mac at {_listed(failing)}. See the last column of the table."
        slow = [use.name for use in self.with_support(Support.FALLS_BACK)]
        how = f", with {_listed(slow)} on the CPU." if slow else " without fallbacks."
        wrong = " On M1 and M2, matrix products in the table may be wrong." if self.large_products else ""
        return f"this step should train on a Mac{how}{wrong}"

    def to_dict(self) -> dict[str, Any]:
        """Returns every field, `ready` and `graphs` in types that JSON has."""
        return {"ready": self.ready, "graphs": self.graphs, **_plain(self)}

    def table(self, verbose: bool = False) -> str:
        """Returns the findings in 100 columns, most serious first, with remedies; `verbose` lists all operators."""
        switch = f"{FALLBACK} is {'on' if self.fallback else 'off'}"
        verdict = "Ready for mps" if self.ready else "Would fail on mps"
        lines = [f"{verdict}: torch {self.torch_version}, {switch}.", ""]
        rows = self._rows(verbose)
        if rows:
            header = ("on mps", "what", "where", "what to do")
            lines += [*_cells(header), *_cells(tuple("-" * width for width in _WIDTHS))]
            lines += [line for row in rows for line in _cells(row)]
            lines.append("")
        return "\n".join([*lines, *self._summary(), "", *textwrap.wrap(f"Verdict: {self.verdict}", 120)])

    def __str__(self) -> str:
        return self.table()

    def _rows(self, verbose: bool) -> list[tuple[str, ...]]:
        rows = [self._operator_row(use) for use in self.with_support(Support.FAILS)]
        rows += [_refused_row(call) for call in self.refused_calls]
        rows += [_dtype_row(problem) for problem in self.dtype_problems if problem.fails]
        rows += [_product_row(product) for product in self.large_products]
        rows += [self._operator_row(use) for use in self.with_support(Support.FALLS_BACK)]
        rows += self._read_rows(verbose)
        rows += [_dtype_row(problem) for problem in self.dtype_problems if not problem.fails]
        if verbose:
            for support in (Support.COMPOSITE, Support.NATIVE):
                rows += [self._operator_row(use) for use in self.with_support(support)]
        return rows

    def _read_rows(self, verbose: bool) -> list[tuple[str, ...]]:
        """Returns a row for each line of the user's own code, then one for all lines of a library with one remedy."""
        rows = []
        inside: dict[tuple[str, str], list[BlockingRead]] = {}
        for read in sorted(self.blocking_reads, key=lambda read: -read.calls):
            if read.where is None or read.where.library is None:
                remedy = "The host waits for the device here. Keep the value on the device, and read it once per log."
                what = f"{read.what}\n({read.phase}, {counted(read.calls, 'call')})"
                rows.append(("waits", what, _where(read.where), remedy))
            else:
                inside.setdefault((read.where.library, self._argument(read.where)), []).append(read)
        return rows + [_library_row(library, remedy, found, verbose) for (library, remedy), found in inside.items()]

    def _argument(self, where: SourceLine) -> str:
        """Returns a sentence that says how to disable a wait of a library, or ""."""
        if self.own_trainer:
            return ""
        known = (remedy for file, text, remedy in _KNOWN if where.file.endswith(file) and where.shows(text))
        return next(known, "")

    def _operator_row(self, use: OperatorUse) -> tuple[str, ...]:
        shapes = f", {use.distinct_shapes} shapes" if use.distinct_shapes > 1 else ""
        what = f"{use.name}\n({use.phase}, {counted(use.calls, 'call')}{shapes})"
        return (use.support.value, what, _where(use.where), self._remedy(use))

    def _remedy(self, use: OperatorUse) -> str:
        if use.support is Support.FAILS:
            if not use.name.startswith("aten::"):
                return "This build of its library has no mps kernel. Ask for one, or replace the operator."
            return f"Set {FALLBACK}=1 before torch is imported, or replace the operator."
        if use.support is Support.FALLS_BACK:
            return "It runs on the CPU and copies its tensors in both directions. Replace it if it is called often."
        return "" if use.support is Support.NATIVE else "Nothing: it consists of operators that are also listed."

    def _summary(self) -> list[str]:
        counts = []
        for support in (Support.NATIVE, Support.COMPOSITE):
            uses = self.with_support(support)
            names = {use.name for use in uses}
            counts.append(f"{len(names)} {support.value} ({counted(sum(use.calls for use in uses), 'call')})")
        lines = [f"Operators: {', '.join(counts)}; {self.graphs} graphs to compile."]
        if self.batch_shapes:
            lines.append(f"Batch shapes in training: {len(self.batch_shapes)}; mps compiles its graphs for each.")
        return [*lines, *(f"Note: {note}" for note in self.notes)]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, Support):
        return value.value
    if not is_dataclass(value):
        return value
    more = {"text": value.text, "library": value.library} if isinstance(value, SourceLine) else {}
    return {name: _plain(each) for name, each in vars(value).items()} | more


def _listed(names: list[str]) -> str:
    """Returns the first distinct names, and the number of the others."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _NAMES_SHOWN
    return ", ".join(distinct[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _where(where: SourceLine | None) -> str:
    if where is None:
        return ""
    text, width = where.text, 2 * _WIDTHS[2]  # two lines of the column
    return f"{where}\n{text if len(text) <= width else text[: width - 1] + '…'}"


def _refused_row(call: RefusedCall) -> tuple[str, ...]:
    return ("fails", f"{call.what}\n({call.phase}, {counted(call.calls, 'call')})", _where(call.where), call.remedy)


def _dtype_row(problem: DtypeProblem) -> tuple[str, ...]:
    verdict = "fails" if problem.fails else "converted"
    return (verdict, f"{problem.what}\n({problem.dtype})", _where(problem.where), problem.remedy)


def _product_row(product: LargeProduct) -> tuple[str, ...]:
    what = f"{product.name}\n({product.phase}, {counted(product.calls, 'call')}, sums of {product.inner:,} numbers)"
    remedy = "On M1 and M2: install torch 2.14 or later (pytorch issue 177116)."
    if product.batched:
        remedy = "On M1 and M2: sum fewer than 32,767 numbers, or make it a 2-D product (pytorch issue 195163)."
    return ("may be wrong", what, _where(product.where), remedy)


def _library_row(library: str, remedy: str, reads: list[BlockingRead], verbose: bool) -> tuple[str, ...]:
    lines = list(dict.fromkeys(read.where for read in reads if read.where is not None))
    shown = lines if verbose else lines[:_LINES_SHOWN]
    calls = sum(read.calls for read in reads)
    phases = ", ".join(dict.fromkeys(read.phase for read in reads))
    what = f"{counted(calls, 'call')} at {counted(len(lines), 'line')}\n({phases})"
    where = [f"inside {library}", *map(_within_library, shown)]
    if len(lines) > len(shown):
        where.append(f"and {len(lines) - len(shown)} more (verbose)")
    return ("waits", what, "\n".join(where), f"The host waits inside {library}, not in your code. {remedy}".strip())


def _within_library(where: SourceLine) -> str:
    """Returns at most two parts of the path below the library's folder, and the line."""
    below = where.file.split(os.sep + (where.library or "") + os.sep)[-1]
    return f"{os.sep.join(below.split(os.sep)[-2:])}:{where.line}"


def _wrapped(line: str, width: int) -> list[str]:
    """Returns the line in parts of at most `width`; a path is broken after a slash."""
    if " " in line:
        return textwrap.wrap(line, width)
    parts = [""]
    for piece in re.findall(r"[^/]*/|[^/]+", line):
        if len(parts[-1]) + len(piece) > width:
            parts.append("")
        parts[-1] += piece
    return [part for whole in parts for part in textwrap.wrap(whole, width)]


def _cells(row: tuple[str, ...]) -> list[str]:
    """Returns the lines of one row, each column wrapped to its width."""
    columns = [
        [part for line in text.split("\n") for part in _wrapped(line, width) or [""]]
        for text, width in zip(row, _WIDTHS, strict=True)
    ]
    height = max(len(column) for column in columns)
    padded = [column + [""] * (height - len(column)) for column in columns]
    return [
        " ".join(part.ljust(width) for part, width in zip(line, _WIDTHS, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    ]
