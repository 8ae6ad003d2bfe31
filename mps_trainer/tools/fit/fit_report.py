"""Reports the memory of a training step and the Macs that it fits on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ...utils.text import format_bytes
from .memory_tracker import KINDS

GIB = 2**30
SIZES = (8, 16, 24, 32, 36, 48, 64, 96, 128)  # GB
# llama.cpp's logs show these on many Macs with macOS 15 and later ("use residency sets = true"), in GiB. 16: also
# llmfit pull request 754; 48: llama.cpp 16634; 128: ollama 17367 and ds4 893. The logs have no Mac with 96 GB.
_HIGHER = {16: 11.84, 24: 17.76, 32: 24.96, 36: 28.08, 48: 37.44, 64: 51.84, 128: 107.52}


def limit_of(size: int) -> int:
    """Returns the least maximum that Metal recommends on Macs with this many GB of memory, in bytes.

    It is two thirds up to 32 GB, and three quarters from 36 GB on. Macs with macOS 14 have it (ollama pull request
    17367), and some with later ones: llama.cpp's logs show 10.67 GiB of 16 GB and 21.33 GiB of 32 GB with residency
    sets too, and 8 GB and 512 GB have it with macOS 15.
    """
    return round(size * GIB * (2 / 3 if size < 36 else 3 / 4))


def higher_limit_of(size: int) -> int | None:
    """Returns the maximum on Macs of this size that recommend more, in bytes; None if none was seen."""
    return round(_HIGHER[size] * GIB) if size in _HIGHER else None


def smallest_for(peak: int) -> int | None:
    """Returns the memory, in GB, of the smallest Mac that a step with this peak fits on; None if there is none."""
    return next((size for size in SIZES if peak <= limit_of(size)), None)


@dataclass(frozen=True)
class RemedyResult:
    """Holds a remedy: `text` is the setting, `bytes_peak` the peak with it."""

    text: str
    bytes_peak: int


@dataclass(frozen=True)
class FitReport:
    """The memory of one training step on mps, computed from the shapes of its tensors.

    Attributes:
        model: the class of the model.
        parameters: the number of its parameters.
        trainable: the number of its trained parameters.
        batch_shape: the shape of the largest tensor in the batch.
        batches: the number of batches that were compared; the step has the largest of them.
        accumulated: the number of batches in an update.
        bytes_by_kind: the memory at the peak of the step: weights, gradients, optimizer, activations, logits.
        remedies: the peak with each remedy, and with all of them together.
        operations: additions and multiplications of the step's matrix products and convolutions.
        least_seconds: a lower bound for the time of the step, by chip.
        longest_texts: the tokens of the longest text, by the GB of each Mac; None for a Mac on which no text fits.
            None if `longest` was not set.
    """

    model: str
    parameters: int
    trainable: int
    batch_shape: tuple[int, ...]
    batches: int
    accumulated: int
    bytes_by_kind: dict[str, int]
    remedies: tuple[RemedyResult, ...]
    operations: float = 0.0
    least_seconds: dict[str, float] = field(default_factory=dict)
    longest_texts: dict[int, int | None] | None = None

    @property
    def bytes_peak(self) -> int:
        """Returns the peak memory of the step in bytes."""
        return sum(self.bytes_by_kind.values())

    @property
    def smallest_mac(self) -> int | None:
        """Returns the memory, in GB, of the smallest Mac that the step fits on; None if it fits on none."""
        return smallest_for(self.bytes_peak)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report for JSON: its attributes, the peak, and which Macs it fits on."""
        macs = [
            {
                "memory_gb": size,
                "bytes_recommended": limit_of(size),
                "bytes_recommended_on_some": higher_limit_of(size),
                "fits": self.bytes_peak <= limit_of(size),
            }
            for size in SIZES
        ]
        return {**asdict(self), "bytes_peak": self.bytes_peak, "smallest_mac_gb": self.smallest_mac, "macs": macs}

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Returns the report as text, for a terminal."""
        return "\n".join([*self._step(), "", *self._macs(), *self._remedies(), *self._times(), "", *_NOTES])

    def _step(self) -> list[str]:
        shape = " x ".join(map(str, self.batch_shape))
        size = f"{_count(self.parameters)} parameters, {_count(self.trainable)} of them trained"
        several = f", {self.accumulated} batches accumulated" if self.accumulated > 1 else ""
        of = f"the largest of the first {self.batches} batches" if self.batches > 1 else "the first batch"
        rows = [
            f"  {kind:<12} {format_bytes(self.bytes_by_kind[kind]):>10}"
            for kind in KINDS
            if self.bytes_by_kind.get(kind)
        ]
        return [
            f"A training step of {self.model} needs {format_bytes(self.bytes_peak)}.",
            f"  {size}; {of} ({shape}){several}",
            "",
            "At the peak:",
            *rows,
        ]

    def _macs(self) -> list[str]:
        limits = [limit_of(size) for size in SIZES]
        rows = [
            ("Mac with", [f"{size} GB" for size in SIZES]),
            ("GPU memory", [f"{limit / GIB:.1f}" for limit in limits]),
            ("on some", [f"{higher / GIB:.1f}" if higher else "" for higher in map(higher_limit_of, SIZES)]),
            ("fits", ["yes" if self.bytes_peak <= limit else "no" for limit in limits]),
        ]
        if self.longest_texts is not None:
            texts = [self.longest_texts.get(size) for size in SIZES]
            rows.append(("longest", [f"{tokens:,}" if tokens else "none" for tokens in texts]))
        return _aligned(rows, 11, 8)

    def _remedies(self) -> list[str]:
        if not self.remedies:
            return []
        width = max(len(each.text) for each in self.remedies)
        rows = [
            f"  {each.text:<{width}}  {format_bytes(each.bytes_peak):>10}  {_on(each.bytes_peak)}"
            for each in self.remedies
        ]
        return ["", "Peak with each of these changes:", *rows]

    def _times(self) -> list[str]:
        """Returns the table of least times, with a row for each generation of chips."""
        if not self.least_seconds:
            return []
        kinds = ("", " Pro", " Max", " Ultra")
        rows = [("No faster than", [kind.strip() for kind in kinds])]
        for generation in sorted({name.split()[0] for name in self.least_seconds}):
            rows.append((generation, [_seconds(self.least_seconds.get(generation + kind)) for kind in kinds]))
        return ["", *_aligned(rows, 14, 9)]


_NOTES = (
    "GPU memory is what Metal recommends at most, in GiB; on some Macs of this size it is more, which is not relied",
    "upon. `mps-trainer doctor` shows it on a Mac. The step is computed from the shapes of its tensors;",
    "the allocator's cache, macOS and other programs are not included. Nothing was trained. The times are bounds from",
    "the published peaks of each chip, for M5 from its memory alone, and no promise: steps on a Mac take longer.",
)


def _aligned(rows: list[tuple[str, list[str]]], first: int, others: int) -> list[str]:
    """Returns a line for each row, with columns of these widths."""
    return [(f"{name:<{first}}" + "".join(f"{cell:>{others}}" for cell in cells)).rstrip() for name, cells in rows]


def _on(peak: int) -> str:
    size = smallest_for(peak)
    return f"more than {SIZES[-1]} GB" if size is None else f"from {size} GB"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return "0 s"


def _count(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
