"""Counts the operators, reads and number formats of a trace and builds the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...devices.facts import parse_version
from ...devices.large_products import INNER, MENDED_IN_2D, OUTER
from ...model.number_formats import REFUSED_ON_MPS
from .coverage_report import BlockingRead, CoverageReport, DtypeProblem, LargeProduct, OperatorUse, RefusedCall
from .residency import named_tensors, storage_of
from .source import SourceLine, current_line
from .table import OperatorTable

MOVED = "tensor copied to the device"
# The positions of the factors among an operator's tensors.
_FACTORS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "addbmm": (1, 2), "linear": (0, 1)}


class Recorder:
    """Counts operators, reads and number formats of one trace."""

    def __init__(self, table: OperatorTable, fallback: bool) -> None:
        self.table = table
        self.fallback = fallback
        self.own_trainer = False  # True for a step of this package's Trainer
        self.notes: dict[str, None] = {}  # a dictionary keeps their order, and each once
        # by name and phase: the line of the first call, and the calls for each set of shapes
        self._operators: dict[tuple[str, str], tuple[SourceLine | None, Counter[tuple]]] = {}
        self._reads: Counter[tuple[str, str, SourceLine | None]] = Counter()
        self._refused: dict[tuple[str, str, SourceLine | None], RefusedCall] = {}
        self._dtypes: dict[tuple[str, SourceLine | None], DtypeProblem] = {}
        self._products: dict[tuple[str, str, SourceLine | None], LargeProduct] = {}
        self._named = WeakIdKeyDictionary()  # by storage: the names that it has already
        self._moved = WeakIdKeyDictionary()  # by storage: the line that moved it
        self._batches: dict[tuple[tuple[str, str], ...], None] = {}

    def operator(self, name: str, phase: str, tensors: Iterable[torch.Tensor], where: SourceLine | None) -> None:
        _, calls = self._operators.setdefault((name, phase), (where, Counter()))
        calls[tuple((tensor.shape, tensor.dtype) for tensor in tensors)] += 1

    def read(self, what: str, phase: str, where: SourceLine | None) -> None:
        self._reads[what, phase, where] += 1

    def refused(self, what: str, remedy: str, phase: str, where: SourceLine | None) -> None:
        key = (what, phase, where)
        known = self._refused.get(key, RefusedCall(what, phase, remedy, where, calls=0))
        self._refused[key] = replace(known, calls=known.calls + 1)

    def product(self, name: str, phase: str, tensors: Sequence[torch.Tensor], where: SourceLine | None) -> None:
        """Records a matrix product that some Macs may compute wrong, with the largest sum for each line."""
        operator = name.removeprefix("aten::").partition(".")[0].rstrip("_")
        if operator not in _FACTORS or not name.startswith("aten::"):
            return
        left, right = (tensors[position] for position in _FACTORS[operator])
        inner = left.shape[-1]
        if operator == "linear":
            rows, columns, batched = left.shape[:-1].numel(), right.shape[0], False
        else:
            rows, columns, batched = left.shape[-2], right.shape[-1], left.dim() == 3
        if inner < INNER or min(rows, columns) < OUTER:
            return
        if batched or parse_version(self.table.torch_version) < MENDED_IN_2D:
            key = (name, phase, where)
            known = self._products.get(key, LargeProduct(name, phase, 0, 0, batched, where))
            self._products[key] = replace(known, calls=known.calls + 1, inner=max(known.inner, inner))

    def dtype(
        self, what: str, tensor: torch.Tensor, remedy: str, where: SourceLine | None, fails: bool = True
    ) -> None:
        """Records a tensor in a format that mps does not have. The first name of a storage is kept."""
        key, name = (what, where), str(tensor.dtype).removeprefix("torch.")
        known = self._dtypes.get(key, DtypeProblem(what, name, fails, remedy, where, calls=0))
        self._dtypes[key] = replace(known, calls=known.calls + 1)

    def module(self, module: torch.nn.Module) -> None:
        """Records the parameters and buffers of `module` in a format that mps does not have."""
        for name, tensor in named_tensors(module):
            if tensor.dtype in REFUSED_ON_MPS and self._is_new(tensor, ""):
                kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
                owner = type(module.get_submodule(name.rpartition(".")[0])).__name__
                remedy = f"Make it {half(tensor.dtype)} where {owner} registers it, or cast the model before training."
                self.dtype(f"{kind} {name} of {type(module).__name__}", tensor, remedy, None)

    def column(
        self, name: str, origin: str, tensor: torch.Tensor, remedy: str | None = None, fails: bool = True
    ) -> None:
        """Records a column of a batch if mps does not have its format. `origin` describes it."""
        if tensor.dtype not in REFUSED_ON_MPS or not self._is_new(tensor, name):
            return
        where = None
        if (storage := storage_of(tensor)) in self._moved:  # noted without a name when it was moved
            where = self._moved.pop(storage)
            self._dtypes.pop((MOVED, where), None)
        remedy = remedy or f"Make it {half(tensor.dtype)} in the dataset or the collator."
        self.dtype(f"column {name} of the batch{origin}", tensor, remedy, where, fails)

    def _is_new(self, tensor: torch.Tensor, name: str) -> bool:
        if (storage := storage_of(tensor)) is None:
            return True
        names = self._named.setdefault(storage, set())
        is_new = name not in names
        names.add(name)
        return is_new

    def moved(self, tensor: torch.Tensor) -> None:
        """Records a copy to the device of a tensor, here, if mps does not have its format."""
        if tensor.dtype not in REFUSED_ON_MPS:
            return
        where = current_line()
        if (storage := storage_of(tensor)) is not None:
            self._moved[storage] = where
        self.dtype(MOVED, tensor, f"Cast it on the host first: .to(torch.{half(tensor.dtype)}).", where)

    def batch(self, shapes: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Records the shapes of a batch. Single numbers, such as the number of items in an update, are ignored."""
        named = ((name, f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}") for name, t in shapes if t.dim())
        self._batches[tuple(named)] = None

    def note(self, text: str) -> None:
        self.notes[text] = None

    def report(self) -> CoverageReport:
        operators = [
            OperatorUse(name, self.table.support(name, self.fallback), phase, calls.total(), len(calls), where)
            for (name, phase), (where, calls) in self._operators.items()
        ]
        return CoverageReport(
            torch_version=self.table.torch_version,
            fallback=self.fallback,
            own_trainer=self.own_trainer,
            operators=operators,
            refused_calls=list(self._refused.values()),
            dtype_problems=list(self._dtypes.values()),
            large_products=list(self._products.values()),
            blocking_reads=[
                BlockingRead(what, phase, calls, where) for (what, phase, where), calls in self._reads.items()
            ],
            batch_shapes=[dict(shapes) for shapes in self._batches],
            notes=list(self.notes),
        )


def half(dtype: torch.dtype) -> str:
    """Returns the format of half the width, which mps supports."""
    return str(REFUSED_ON_MPS[dtype]).removeprefix("torch.")
