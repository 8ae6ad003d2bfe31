"""README's table: the figures that say most, one column for each peer. `python -m benchmarks.summary` prints it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import report
from .worker import ROOT

RESULTS = ROOT / "benchmarks" / "results"
COLUMNS = {
    "bare": "bare loop",
    "transformers": "transformers",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "ours": "mps_trainer",
}
Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A line of the table: `value(result, entry)` for the entry of each column that has one."""

    label: str
    benchmark: str
    value: Callable[[Result, str], float | None]
    digits: int
    entries: dict[str, str] | None = None  # by column; default: the entry of the column's name


def middle(figure: str) -> Callable[[Result, str], float | None]:
    return lambda result, entry: result["middles"].get(entry, {}).get(figure)


def over(baseline: str, figure: str) -> Callable[[Result, str], float | None]:
    """The median over the rounds of the ratio to `baseline` within a round."""

    def value(result: Result, entry: str) -> float | None:
        pairs = [(round_[entry], round_[baseline]) for round_ in result["rounds"] if {entry, baseline} <= set(round_)]
        return statistics.median(own[figure] / base[figure] for own, base in pairs) if pairs else None

    return value


ROWS = (
    Row(
        "time of a step, one linear layer, over the bare loop's", "overhead", over("bare", "milliseconds_per_step"), 2
    ),
    Row(
        "time of a step in 2 processes, over DDP by hand",
        "distributed",
        over("bare", "milliseconds_per_step"),
        2,
    ),
    Row("reads that wait, a step of a 2-layer BERT on mps", "simulated", middle("blocking_reads"), 0),
    Row("copies to the device, the same step", "simulated", middle("host_to_device"), 0),
    Row("operators, the same step", "simulated", middle("operators"), 0),
    Row("MRPC with MiniLM, 1 epoch, whole process", "mrpc", over("transformers", "seconds"), 2),
    Row(
        "the same, over transformers padded by batch",
        "mrpc",
        over("transformers-dynamic", "seconds"),
        2,
        {"transformers": "transformers-dynamic", "ours": "ours"},
    ),
    Row(
        "the same in bfloat16",
        "mrpc",
        over("transformers-dynamic-bf16", "seconds"),
        2,
        {"transformers": "transformers-dynamic-bf16", "ours": "ours-bf16"},
    ),
    Row("padded tokens for each real one", "mrpc", middle("padding"), 2),
    Row("MRPC dev accuracy, 1 epoch in bfloat16, mean over seeds", "learning", middle("dev_accuracy"), 4),
    Row(
        "`TrainingArguments(...).device`, over `import torch`",
        "startup",
        over("torch", "seconds"),
        2,
        {"transformers": "transformers-device", "ours": "ours-device"},
    ),
    Row(
        "seconds of the example's `--help`",
        "startup",
        middle("seconds"),
        1,
        {"transformers": "transformers-help", "ours": "ours-help"},
    ),
    Row(
        "seconds to the example's first step",
        "startup",
        middle("seconds"),
        1,
        {"transformers": "transformers-first-step", "ours": "ours-first-step"},
    ),
)


def table(results: dict[str, Result]) -> list[str]:
    """The lines of the table, of those rows whose benchmark has a result."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "| --- |" + " ---: |" * len(COLUMNS)]
    for row in ROWS:
        result = results.get(row.benchmark)
        if result is None or "skipped" in result:
            continue
        entries = row.entries or {column: column for column in COLUMNS}
        cells = [
            report.number(row.value(result, entries[column]) if column in entries else None, row.digits)
            for column in COLUMNS
        ]
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    return lines


def read(folder: Path = RESULTS) -> dict[str, Result]:
    return {result["name"]: result for result in report.read(folder)}


if __name__ == "__main__":
    print("\n".join(table(read())))
