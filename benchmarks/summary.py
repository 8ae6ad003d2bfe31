"""The summary tables: a short one for README, all rows for docs/speed.md and benchmarks/results/README.md, and TABLES.

`python -m benchmarks.summary` writes them from the JSON files in benchmarks/results.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Sequence
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
SHORT_COLUMNS = {"transformers": "transformers", "ours": "mps_trainer"}
# The pages with a table, and whether it is the short one.
PAGES = {"README.md": True, "docs/speed.md": False, "benchmarks/results/README.md": False}
BEGIN, END = "<!-- benchmarks -->\n", "<!-- end of benchmarks -->\n"
NOT_MEASURED = "–"
Result = dict[str, Any]
Cell = Callable[[Result, str], str]


@dataclass(frozen=True)
class Row:
    """A line of the table: `cell(result, entry)` for the entry of each column that has one."""

    label: str  # {epochs} and {rounds} are the result's
    benchmark: str
    cell: Cell
    entries: dict[str, str] | None = None  # by column; default: the entry of the column's name
    needs: str = "the import"  # what gives this figure; in README's table


def middle(figure: str, digits: int) -> Cell:
    """Returns the median over the rounds, or the mean where the benchmark says so."""
    return lambda result, entry: report.number(result["middles"].get(entry, {}).get(figure), digits)


def over(baseline: str, figure: str) -> Cell:
    """Returns the median over the rounds of the ratio to `baseline` within a round."""

    def cell(result: Result, entry: str) -> str:
        pairs = [
            (round_.get(entry, {}).get(figure), round_.get(baseline, {}).get(figure)) for round_ in result["rounds"]
        ]
        ratios = [own / base for own, base in pairs if own is not None and base is not None]
        return report.number(statistics.median(ratios) if ratios else None, 2)

    return cell


def spread(figure: str, digits: int) -> Cell:
    """Returns mean and sample standard deviation over the rounds."""

    def cell(result: Result, entry: str) -> str:
        values = of_rounds(result, entry, figure)
        if len(values) < 2:
            return NOT_MEASURED
        return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"

    return cell


def of_rounds(result: Result, entry: str, figure: str) -> list[float]:
    values = [round_.get(entry, {}).get(figure) for round_ in result["rounds"]]
    return [value for value in values if value is not None]


STEP = "milliseconds_per_step"
PROCESSOR = "training_processor_seconds"
BY_BATCH = {"transformers": "transformers-dynamic", "ours": "ours"}
BUCKETS = {"transformers": "transformers-dynamic", "ours": "import-buckets"}
BY_BATCH_BF16 = {"transformers": "transformers-dynamic-bf16", "ours": "ours-bf16"}
ROWS = (
    Row(
        "step of one linear layer, time relative to a bare loop with the default AdamW",
        "overhead",
        over("bare", STEP),
    ),
    Row(
        "step of two DDP processes on one machine, time relative to bare DDP with the default AdamW",
        "distributed",
        over("bare", STEP),
    ),
    Row(
        "MRPC, {epochs}, `bucket_by_length`: processor time of training relative to transformers padded by batch",
        "mrpc",
        over("transformers-dynamic", PROCESSOR),
        BUCKETS,
    ),
    Row(
        "MRPC, {epochs}, `bucket_by_length`: whole run, time relative to transformers padded by batch",
        "mrpc",
        over("transformers-dynamic", "seconds"),
        BUCKETS,
    ),
    Row(
        "MRPC by `run_glue.py`, {epochs}: processor time of training relative to transformers padded by batch",
        "mrpc",
        over("transformers-dynamic", PROCESSOR),
        BY_BATCH,
    ),
    Row(
        "MRPC, {epochs} in bfloat16: processor time of training relative to transformers padded by batch",
        "learning",
        over("transformers", PROCESSOR),
    ),
    Row(
        "MRPC by `run_glue.py`, {epochs}: whole run, time relative to transformers padded by batch",
        "mrpc",
        over("transformers-dynamic", "seconds"),
        BY_BATCH,
    ),
    Row(
        "MRPC by `run_glue.py`, {epochs} in bfloat16: whole run, time relative to transformers padded by batch",
        "mrpc",
        over("transformers-dynamic-bf16", "seconds"),
        BY_BATCH_BF16,
    ),
    Row(
        "padded tokens per real token, MRPC, transformers padded by batch",
        "mrpc",
        middle("padding", 2),
        BUCKETS,
    ),
    Row("shapes of batches in that epoch", "mrpc", middle("distinct_shapes", 0), BUCKETS),
    Row(
        "MRPC dev accuracy, {epochs} in bfloat16, mean ± standard deviation of {rounds} seeds",
        "learning",
        spread("dev_accuracy", 3),
    ),
    Row(
        "blocking syncs per step, 2-layer BERT on simulated mps",
        "simulated",
        middle("blocking_reads", 0),
    ),
    Row("host-to-device copies per step, same model", "simulated", middle("host_to_device", 0)),
    Row(
        "operators per step, same model (bare loop, Accelerate and Lightning: the default AdamW)",
        "simulated",
        middle("operators", 0),
    ),
    Row(
        "the same, all with fused AdamW",
        "simulated",
        middle("operators", 0),
        {"bare": "bare-fused", "transformers": "transformers", "ours": "ours"},
    ),
    Row(
        "seconds to the first step of one script, import changed",
        "startup",
        middle("seconds", 1),
        {"transformers": "transformers-first-step", "ours": "import-first-step"},
    ),
)
# Counts and sizes, which a Mac has too: times of a CPU are none of a Mac.
SHORT_ROWS = (
    Row("blocking syncs per step, 2-layer BERT", "simulated", middle("blocking_reads", 0)),
    Row("operators per step, same model", "simulated", middle("operators", 0)),
    Row(
        "MiB of a step with LoRA, small Llama, 65,536 words, 2,048 tokens",
        "language",
        middle("lora_mib", 0),
        needs="the import; not TRL, which computes the head itself",
    ),
    Row(
        "MiB of causal attention over 4,096 tokens, 8 heads, with gradients",
        "attention",
        middle("mib_4096", 0),
        {"transformers": "torch", "ours": "ours"},
        "the import, on mps",
    ),
    Row(
        "shapes of batches in {epochs} of MRPC with padding; a Mac compiles each",
        "mrpc",
        middle("distinct_shapes", 0),
        {"transformers": "transformers-dynamic", "ours": "import-buckets"},
        '`train_sampling_strategy="bucket_by_length"`',
    ),
)


@dataclass(frozen=True)
class Table:
    """A table of one benchmark on a page of the documentation: a column for each entry, a row for each figure.

    Attributes:
        columns: their names, by entry.
        rows: their labels, each with the cell for an entry.
    """

    page: str
    columns: dict[str, str]
    rows: tuple[tuple[str, Cell], ...]


TABLES = {
    "attention": Table(
        "docs/long-texts.md",
        {"torch": "torch's attention", "ours": "in blocks"},
        tuple(
            (f"{tokens:,} tokens: processor time, relative", over("torch", f"milliseconds_{tokens}"))
            for tokens in (1024, 4096)
        ),
    ),
    "padding": Table(
        "docs/padding.md",
        {"transformers": "transformers", "padded": "`padding_free=False`", "ours": "without padding"},
        (
            ("MiniLM on MRPC, batches of 16: processor time of a step", over("transformers", "mrpc16_milliseconds")),
            ("the same, batches of 32", over("transformers", "mrpc32_milliseconds")),
            ("Llama on chats, batches of 8: processor time of a step", over("transformers", "chats_milliseconds")),
            ("the same, peak memory of a step", over("transformers", "chats_mib")),
        ),
    ),
    "language": Table(
        "docs/speed.md",
        {"transformers": "transformers", "ours": "mps_trainer"},
        (
            ("all weights: peak memory above the start, MiB", middle("full_mib", 0)),
            ("LoRA: the same", middle("lora_mib", 0)),
            ("all weights: processor time of a step, relative", over("transformers", "full_milliseconds")),
            ("LoRA: the same", over("transformers", "lora_milliseconds")),
            ("all weights: operators of a step on simulated mps, two layers", middle("full_operators", 0)),
            ("LoRA: the same", middle("lora_operators", 0)),
            ("all weights: blocking syncs of a step, same model", middle("full_blocking_reads", 0)),
        ),
    ),
    "quantized": Table(
        "docs/peft.md",
        {"plain": "32 bits", "mlx": "MLX's format", "nf4": "nf4 of bitsandbytes"},
        (
            ("memory of the weights, relative", over("plain", "weights_mib")),
            ("processor time of a step, relative", over("plain", "milliseconds")),
            ("operators of a step on simulated mps, two layers", middle("operators", 0)),
            ("peak memory of the same step, relative", over("plain", "peak_mib")),
            ("blocking syncs of the same step", middle("blocking_reads", 0)),
        ),
    ),
    "options": Table(
        "docs/speed.md",
        {
            "plain": "without",
            "bf16": "`bf16`",
            "torch_compile": "`torch_compile`",
            "gradient_checkpointing": "`gradient_checkpointing`",
            "pad_to_max_length": "`--pad_to_max_length`",
        },
        (
            ("time of training, relative", over("plain", "training_seconds")),
            ("peak memory of the process, relative", over("plain", "peak_rss_mib")),
        ),
    ),
}


def markers(name: str) -> tuple[str, str]:
    """Returns the lines before and after the table of a benchmark."""
    return f"<!-- benchmark {name} -->\n", f"<!-- end of benchmark {name} -->\n"


def table_of(name: str, results: dict[str, Result]) -> str:
    """Returns a table of TABLES between its markers, with a line that says where and when it was measured."""
    table, result, (begin, end) = TABLES[name], results[name], markers(name)
    lines = ["| | " + " | ".join(table.columns.values()) + " |", "| --- |" + " ---: |" * len(table.columns)]
    lines += [
        f"| {label} | {' | '.join(cell(result, entry) for entry in table.columns)} |" for label, cell in table.rows
    ]
    lines += ["", *textwrap.wrap(by_machine({name: result}), 119, break_on_hyphens=False)]
    return begin + "\n".join(lines) + "\n" + end


def measured(results: dict[str, Result], short: bool = False) -> list[tuple[Row, list[str]]]:
    """Returns each row that was measured for mps_trainer, the last column, with its cells."""
    columns, found = SHORT_COLUMNS if short else COLUMNS, []
    for row in SHORT_ROWS if short else ROWS:
        result = results.get(row.benchmark)
        if result is None or "skipped" in result or result.get("quick"):
            continue
        entries = row.entries or {column: column for column in columns}
        cells = [row.cell(result, entries[column]) if column in entries else NOT_MEASURED for column in columns]
        if cells[-1] != NOT_MEASURED:
            found.append((row, cells))
    return found


def block(results: dict[str, Result], short: bool = False) -> str:
    """Returns table and notes in Markdown between their markers; `short`: README's.

    The text is empty if nothing has been measured.
    """
    rows, columns = measured(results, short), SHORT_COLUMNS if short else COLUMNS
    if not rows:
        return ""
    lines = ["| | " + " | ".join(columns.values()) + " |", "| --- |" + " ---: |" * len(columns)]
    if short:
        lines = [lines[0] + " needs |", lines[1] + " --- |"]
    for row, cells in rows:
        result = results[row.benchmark]
        label = row.label.format(epochs=epochs(result), rounds=len(result["rounds"]))
        lines.append(f"| {label} | {' | '.join([*cells, row.needs] if short else cells)} |")
    shown = {row.benchmark: results[row.benchmark] for row, _ in rows}
    sentences = [baseline(shown), where(shown)] if short else [by_machine(shown), of_accuracies(shown.get("learning"))]
    lines += ["", *textwrap.wrap(" ".join(filter(None, sentences)), 119, break_on_hyphens=False)]
    return BEGIN + "\n".join(lines) + "\n" + END


def epochs(result: Result) -> str:
    """Returns "1 epoch" or "3 epochs", from the arguments of the measured scripts; "" if they name none."""
    arguments: Sequence[str] = result.get("settings", {}).get("arguments", [])
    if "--num_train_epochs" not in arguments:
        return ""
    number = arguments[arguments.index("--num_train_epochs") + 1]
    return f"{number} epoch" + ("" if number == "1" else "s")


def machine_of(result: Result) -> str:
    return f"{result['machine']['processor']} with {result['machine']['cores']} cores"


def torch_of(result: Result) -> str:
    return f"torch {result['versions']['torch'].partition('+')[0]}"


def by_machine(results: dict[str, Result]) -> str:
    """Returns a sentence for each machine, with the benchmarks that ran there, their dates, rounds and torch."""
    runs: dict[str, list[str]] = {}
    for name, result in results.items():
        rounds = f"{len(result['rounds'])} round" + ("s" if len(result["rounds"]) > 1 else "")
        details = f"{result['date'].partition('T')[0]}, {rounds}, {torch_of(result)}"
        runs.setdefault(machine_of(result), []).append(f"`{name}` ({details})")
    return " ".join(f"On {machine}: {', '.join(names)}." for machine, names in runs.items())


def baseline(results: dict[str, Result]) -> str:
    """Returns a sentence with the releases of transformers that were measured, and their settings."""
    releases = " and ".join(sorted({result["versions"]["transformers"] for result in results.values()}))
    return (
        f"transformers {releases}: its Trainer with fused AdamW, the default, and batches padded to their longest "
        "text. Like torch's attention on mps, its attention keeps all scores."
    )


def where(results: dict[str, Result]) -> str:
    """Returns one sentence with the machines, releases of torch, first and last date, and fewest and most rounds."""
    machines = " and ".join(dict.fromkeys(map(machine_of, results.values())))
    releases = " and ".join(sorted({torch_of(result) for result in results.values()}))
    dates = sorted({result["date"].partition("T")[0] for result in results.values()})
    rounds = sorted({len(result["rounds"]) for result in results.values()})
    return (
        f"Measured on {machines} with {releases}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, in "
        f"{' to '.join(dict.fromkeys((str(rounds[0]), str(rounds[-1]))))} rounds "
        "([each](benchmarks/results/README.md))."
    )


def of_accuracies(result: Result | None) -> str | None:
    """Returns whether the two mean accuracies differ by more than the spread over the seeds."""
    ours, theirs = (of_rounds(result or {"rounds": []}, name, "dev_accuracy") for name in ("ours", "transformers"))
    if min(len(ours), len(theirs)) < 2:
        return None
    difference = abs(statistics.mean(ours) - statistics.mean(theirs))
    if difference < min(statistics.stdev(ours), statistics.stdev(theirs)):
        return "The accuracies differ by less than either's standard deviation: no difference is shown."
    return "The accuracies differ by more than the smaller standard deviation."


def replaced(text: str, new: str, begin: str = BEGIN, end: str = END) -> str:
    """Returns `text` with `new` in place of the block between the markers."""
    return text.split(begin)[0] + new + text.split(end)[1]


def read(folder: Path = RESULTS) -> dict[str, Result]:
    return {result["name"]: result for result in report.read(folder)}


def main() -> None:
    results = read()
    for name, short in PAGES.items():
        page = ROOT / name
        page.write_text(replaced(page.read_text(encoding="utf-8"), block(results, short)), encoding="utf-8")
        print(page)
    for name, table in TABLES.items():
        page = ROOT / table.page
        text = replaced(page.read_text(encoding="utf-8"), table_of(name, results), *markers(name))
        page.write_text(text, encoding="utf-8")
        print(page, name)


if __name__ == "__main__":
    main()
