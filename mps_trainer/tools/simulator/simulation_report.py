"""Reports a run on the simulated device, as data and as a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ...utils.text import format_bytes
from ..check.source import SourceLine

WIDTH = 120
SHOWN_OPERATORS = 10


@dataclass(frozen=True)
class OperatorCalls:
    """Calls of one operator and the graphs that hardware compiles for it: one for each shape, or none at all."""

    name: str
    calls: int
    graphs: int
    fell_back: bool


@dataclass(frozen=True)
class Place:
    """A line of Python that made the host wait for the device, by `operator`, `count` times.

    `kind`: "read" for a value that the host asked for, "fallback" for an operator that ran on the CPU. `file`, `line`
    and `source` are None where no Python line led there (the thread in which backward runs).
    """

    kind: str
    operator: str
    count: int
    file: str | None
    line: int | None
    source: str | None


@dataclass(frozen=True)
class SimulationReport:
    """Counts since the device was switched on. Sizes are bytes."""

    torch_version: str
    fallback: bool
    memory: int  # the recommended maximum
    blocking_reads: int
    synchronizations: int
    host_to_device: int
    host_to_device_bytes: int
    device_to_host: int
    device_to_host_bytes: int
    bytes_live: int
    bytes_peak: int
    bytes_held: int  # includes what torch keeps for later
    operators: tuple[OperatorCalls, ...]  # most calls first
    places: tuple[Place, ...]  # most often first

    @property
    def operator_calls(self) -> int:
        """Returns the number of kernels that the device ran, without views and allocations."""
        return sum(operator.calls for operator in self.operators)

    @property
    def fell_back(self) -> tuple[OperatorCalls, ...]:
        """Returns the operators that ran on the CPU."""
        return tuple(operator for operator in self.operators if operator.fell_back)

    @property
    def graphs(self) -> int:
        """Returns the number of graphs that hardware would have compiled, over all operators."""
        return sum(operator.graphs for operator in self.operators)

    def to_dict(self) -> dict[str, Any]:
        """Returns every field and total in types that JSON has."""
        totals = {"operator_calls": self.operator_calls, "graphs": self.graphs}
        return {**dataclasses.asdict(self), **totals}

    def __str__(self) -> str:
        return "\n".join([f"On the simulated mps device (torch {self.torch_version}):", *self._rows()])

    def _rows(self) -> list[str]:
        rows = [f"  {_times(operator.calls)} on the CPU: {operator.name}" for operator in self.fell_back]
        rows += [
            f"  {_row('memory, peak', format_bytes(self.bytes_peak))} of {format_bytes(self.memory)} recommended",
            f" {_row('blocking reads', self.blocking_reads)} each waits until the device has finished its queue",
        ]
        rows += [f"    {text}"[:WIDTH] for text in map(_place_row, self.places)]
        to_device, to_host = format_bytes(self.host_to_device_bytes), format_bytes(self.device_to_host_bytes)
        rows += [
            f"  {_row('copies to the device', self.host_to_device)} {to_device}",
            f"  {_row('copies to the host', self.device_to_host)} {to_host}",
            f"  {_row('operators run', self.operator_calls)} {len(self.operators)} different ones",
            f"  {_row('graphs compiled', self.graphs)} one for each shape of the operators that need one",
        ]
        compiled = sorted((one for one in self.operators if one.graphs), key=lambda one: -one.graphs)
        return rows + [f"    {one.graphs:>8}  {one.name}, {_times(one.calls)}" for one in compiled[:SHOWN_OPERATORS]]


def _row(name: str, value: object) -> str:
    return f"{name:<24}{value!s:>12}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _place_row(place: Place) -> str:
    what = f"{place.operator} on the CPU" if place.kind == "fallback" else place.operator
    where = "no line of Python, as in backward"
    if place.file is not None and place.line is not None:
        where = f"{SourceLine(place.file, place.line)}: {place.source}"
    return f"{place.count:>8}  {what}, {where}"
