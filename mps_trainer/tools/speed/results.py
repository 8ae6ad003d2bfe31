"""Holds what was measured, as data for JSON and as Markdown to paste."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...devices.facts import machine_line, system_line
from ...errors import MisconfigurationException
from ...utils.text import format_bytes

OURS = "mps_trainer"
NOTHING = "–"
FASTER, SLOWER, ALIKE = "faster", "slower", "within the spread"
_UNSTEADY = 1.5  # times the fastest round; throttled chips take 1.2 to 2.9 times as long


@dataclass(frozen=True)
class Measured:
    """One side of a workload.

    Attributes:
        seconds: of a step or a call, by round.
        peak_bytes: the most that tensors took on the device; None where torch does not report it.
        failure: why there are no times, as a clause; None if it ran.
        out_of_memory: True if that is the failure.
    """

    seconds: tuple[float, ...] = ()
    peak_bytes: int | None = None
    failure: str | None = None
    out_of_memory: bool = False

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


@dataclass(frozen=True)
class WorkloadResult:
    """One workload.

    Attributes:
        sizes: what was computed, in words.
        is_training: False for an operation, which torch alone may have.
        other: the name of the other side: transformers or torch.
        ours: None if this package has no operation of its own.
        estimated_bytes: the peak that `mps-trainer fit` computes for `ours`; None for an operation or if it failed.
        published: a figure of others for these sizes, with its source; None if there is none, in smaller sizes and on
            a simulated device.
        skipped: why it was not tried, as a clause; None if it was.
    """

    name: str
    sizes: str
    is_training: bool
    other: str
    ours: Measured | None
    theirs: Measured
    estimated_bytes: int | None = None
    published: str | None = None
    skipped: str | None = None

    def times(self) -> dict[str, tuple[float, ...]]:
        """Returns the times of a step or a call by side and round."""
        sides = {OURS: self.ours, self.other: self.theirs}
        return {name: side.seconds for name, side in sides.items() if side is not None}

    def ratios(self) -> list[float]:
        """Returns the time of ours relative to the other's, within each round."""
        both = zip(self.ours.seconds if self.ours else (), self.theirs.seconds, strict=False)
        return [own / other for own, other in both]

    @property
    def unsteady(self) -> float | None:
        """Returns the slowest round over the fastest of a side, where that is too much to compare; else None."""
        spread = max((max(times) / min(times) for times in self.times().values() if times), default=1.0)
        return spread if spread > _UNSTEADY else None

    @property
    def comparison(self) -> str | None:
        """Returns FASTER or SLOWER, if ours was so in each of two rounds or more, else ALIKE; None without these."""
        ratios = self.ratios()
        if len(ratios) < 2 or self.unsteady:
            return None
        return FASTER if max(ratios) < 1 else SLOWER if min(ratios) > 1 else ALIKE

    @property
    def failed(self) -> bool:
        """True if this package did not run it, though there was memory."""
        return self.ours is not None and self.ours.failure is not None and not self.ours.out_of_memory


@dataclass(frozen=True)
class SpeedReport:
    """Holds all workloads, with the device, versions and facts of the machine.

    Attributes:
        quick: whether `--quick` was given.
        smaller: True if sizes were reduced, because no GPU computed.
        unjudged: clauses with the reasons not to compare the times; empty if they may be compared.
        date: the day, in ISO format.
    """

    device: str
    simulated: bool
    quick: bool
    smaller: bool
    date: str
    versions: dict[str, str]
    facts: dict[str, Any]
    unjudged: tuple[str, ...]
    workloads: tuple[WorkloadResult, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """True if this package ran each workload that there was memory for."""
        return not any(result.failed for result in self.workloads)

    def to_dict(self) -> dict[str, Any]:
        """Returns every field in types that JSON has."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> SpeedReport:
        """Returns the report that `to_dict()` wrote.

        Raises:
            MisconfigurationException: for a field that is missing, unknown or of another type, and for times that are
                not positive numbers.
        """
        import msgspec  # a library that the commands without measurements do without

        try:
            report = msgspec.convert(data, cls)
        except (msgspec.ValidationError, UnicodeError) as error:
            raise _no_report(str(error)) from error
        given = {name: value for name, value in data.items() if name != "generator"}
        if json.loads(json.dumps(report.to_dict())) != given:
            raise _no_report("fields are missing, or it has unknown ones")
        for result in report.workloads:
            times = [time for of_side in result.times().values() for time in of_side]
            if not all(math.isfinite(time) and time > 0 for time in times):
                raise _no_report(f"{result.name} has times that are not positive numbers")
        return report

    def __str__(self) -> str:
        training = [result for result in self.workloads if result.is_training]
        operations = [result for result in self.workloads if not result.is_training]
        lines = [f"### mps-trainer speed{' --quick' if self.quick else ''}: {self._machine()}", "", self._head(), ""]
        if training:
            lines += [*_markdown(TRAINING_HEAD, [_training_row(each, self.judged) for each in training]), ""]
        if operations:
            lines += [*_markdown(OPERATIONS_HEAD, [_operation_row(each, self.judged) for each in operations]), ""]
        return "\n".join([*lines, *self._notes(), self.verdict])

    @property
    def judged(self) -> bool:
        return not self.unjudged

    @property
    def verdict(self) -> str:
        """Returns a line that compares the two Trainers, or that says why it does not."""
        if self.unjudged:
            return f"Not judged: {'; '.join(self.unjudged)}."
        words = {
            FASTER: f"{OURS} is faster in every round",
            SLOWER: f"{OURS} is slower in every round",
            ALIKE: "the difference is within the spread",
        }
        groups = {kind: [each.name for each in self.workloads if each.comparison == kind] for kind in words}
        said = [f"{words[kind]} ({'; '.join(names)})" for kind, names in groups.items() if names]
        return f"Verdict: {'; '.join(said)}." if said else "Verdict: nothing was compared."

    def _machine(self) -> str:
        facts = {**self.facts, "system": system_line(self.facts)}
        virtual = ", a virtual machine" if self.facts.get("virtual_machine") else ""
        return machine_line(facts, "chip", "memory_bytes", "system") + virtual

    def _head(self) -> str:
        device = f"{self.device}, SIMULATED on the CPU" if self.simulated else self.device
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"Device: {device}. {self.date}, {self.seconds:.0f} s. {versions}."

    def _notes(self) -> list[str]:
        notes = []
        if self.smaller:
            notes.append(
                "The sizes in the rows are smaller than the real ones, because no GPU computed. Figures that are "
                "published for the real sizes are left out."
            )
        for result in self.workloads:
            if result.skipped:
                notes.append(f"{result.name} was not tried: {result.skipped}.")
            if self.judged and result.ratios() and result.unsteady:
                notes.append(f"{result.name} is not compared: one round took {result.unsteady:.1f} times as long.")
            for name, side in ((OURS, result.ours), (result.other, result.theirs)):
                if side is not None and side.failure is not None:
                    notes.append(f"{result.name}, {name}: {side.failure}.")
        return [*notes, ""] if notes else []


def _no_report(why: str) -> MisconfigurationException:
    return MisconfigurationException(
        f"This is not a report of mps-trainer speed: {why}. Give a file that `mps-trainer speed --json FILE` wrote."
    )


# Markdown

TRAINING_HEAD = (
    "a step of training",
    OURS,
    "transformers",
    "time relative to transformers",
    "peak memory (transformers)",
    "`fit` says",
    "published elsewhere",
)
OPERATIONS_HEAD = ("an operation", OURS, "torch", "time relative to torch", "published elsewhere")


def _training_row(result: WorkloadResult, judged: bool) -> list[str]:
    peaks = [_bytes(side.peak_bytes if side else None) for side in (result.ours, result.theirs)]
    return [
        f"{result.name} ({result.sizes})",
        step_text(result.ours),
        step_text(result.theirs),
        ratio_text(result, judged),
        NOTHING if peaks == [NOTHING] * 2 else f"{peaks[0]} ({peaks[1]})",
        _bytes(result.estimated_bytes),
        result.published or NOTHING,
    ]


def _operation_row(result: WorkloadResult, judged: bool) -> list[str]:
    return [
        f"{result.name} ({result.sizes})",
        _call(result.ours),
        _call(result.theirs),
        ratio_text(result, judged),
        result.published or NOTHING,
    ]


def ratio_text(result: WorkloadResult, judged: bool) -> str:
    """Returns the median ratio with its range and the number of rounds; nothing where it may not be judged."""
    ratios = result.ratios()
    if not ratios or not judged or result.unsteady:
        return NOTHING
    rounds = f"{len(ratios)} rounds" if len(ratios) > 1 else "1 round"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {rounds})"


def _call(side: Measured | None) -> str:
    if side is None or side.median is None:
        return _failed(side)
    return duration(side.median)


def step_text(side: Measured | None) -> str:
    if side is None or side.median is None:
        return _failed(side)
    return f"{duration(side.median)}, {_digits(1 / side.median)} steps/s"


def _failed(side: Measured | None) -> str:
    if side is None or side.failure is None:
        return NOTHING
    return "out of memory" if side.out_of_memory else "failed"


def _bytes(size: int | None) -> str:
    return NOTHING if size is None else format_bytes(size)


def duration(seconds: float) -> str:
    """Returns a time with three digits, such as "12.3 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e6)} µs"


def _digits(number: float) -> str:
    """Returns the first three digits, or the whole part if it has more."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table with figures aligned to the right, except the first and the last column."""
    middle = ["---:"] * (len(head) - 2)
    lines = [head, ["---", *middle, "---"], *rows]
    return ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines]
