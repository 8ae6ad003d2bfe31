"""Makes the text and numbers of the tables and the headline of a page; no markup."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from ..devices.facts import PACKAGES
from ..utils.amounts import format_bytes
from ..utils.documentation import page
from ..utils.text import counted
from . import curves
from .record import FAILED, FINISHED, LIVE, RESIDENT, RUNNING, STOPPED, RunRecord, is_number
from .redaction import NOT_SHOWN
from .words import date, duration, metric_name, number, share

Row = tuple[str, ...]

GOOD, BAD, NEUTRAL = "good", "bad", "neutral"
_SHOWN_OPERATORS = 30
WHOLE_RUN = "train_samples_per_second"
TRAINING_LOSS, MEAN_LOSS = "training loss", "mean training loss"
LOSSES = (TRAINING_LOSS, MEAN_LOSS)


@dataclass
class Tile:
    """A figure of the headline with its label."""

    label: str
    value: str
    more: str = ""


@dataclass
class Table:
    """Rows of text below a row of headings; `numbers` are the columns that are aligned to the right."""

    head: Row
    rows: list[Row] = field(default_factory=list)
    numbers: tuple[int, ...] = ()


def outcome(record: RunRecord) -> tuple[str, str, str]:
    """Returns a word for the badge, its tone, and a sentence."""
    kind, text = record.outcome.get("kind"), str(record.outcome.get("text") or "")
    step, most = record.outcome.get("step") or 0, record.outcome.get("max_steps") or 0
    steps = f"{number(step)} of {number(most)} steps" if most else f"{number(step)} steps"
    took = f" in {duration(record.seconds)}" if record.seconds else ""
    if kind == FINISHED:
        return "finished", GOOD, f"{steps}{took}{_on(record)}. {text}".strip()
    if kind == STOPPED:
        return "stopped", NEUTRAL, f"Stopped {text} after {steps}{took}{_on(record)}."
    if kind == FAILED:
        return "failed", BAD, f"After {steps}{took}{_on(record)}: {text}"
    if kind == RUNNING:
        return "not ended", NEUTRAL, f"{steps}{took}{_on(record)} when this was written."
    return "unknown end", NEUTRAL, f"{steps}; {record.source} does not tell how the run ended."


def device_name(record: RunRecord) -> str:
    name = str(record.device.get("device") or "")
    return f"simulated {name}" if name and record.device.get("simulated") else name


def _on(record: RunRecord) -> str:
    return f" on {name}" if (name := device_name(record)) else ""


def final_metrics(record: RunRecord) -> dict[str, float]:
    """Returns the last value of each metric, and the last training loss; the mean of the run where none was logged."""
    found = {name: value for name in curves.metric_names(record) if (value := _last(record, name)) is not None}
    for name, label in (("loss", TRAINING_LOSS), ("train_loss", MEAN_LOSS)):
        if (value := _last(record, name)) is not None:
            return {**found, label: value}
    return found


def _last(record: RunRecord, name: str) -> float | None:
    return next((entry[name] for entry in reversed(record.history) if name in entry), None)


def throughput(record: RunRecord) -> tuple[float, str] | None:
    """Returns examples per second, as the last line in the terminal has them, and how they were measured.

    For a run without that line: the median of the rates between two logs.
    """
    rates = curves.samples_per_second(record).values
    median = statistics.median(rates) if rates else None
    if (whole := _last(record, WHOLE_RUN)) is not None:
        more = "" if median is None else f"; median between logs {number(median)}"
        return whole, f"samples/s of the whole run{more}"
    return None if median is None else (median, "samples/s, median between logs")


def tiles(record: RunRecord) -> list[Tile]:
    """Returns the headline: metrics, loss, time, speed and memory."""
    metrics = final_metrics(record)
    ordered = sorted(metrics, key=lambda name: (name in LOSSES, name.endswith("_loss")))
    found = [Tile(metric_name(name), number(metrics[name]), _detail(record, name)) for name in ordered[:6]]
    if record.seconds:
        count = len(record.sessions)
        found.append(Tile("training time", duration(record.seconds), f"in {count} sessions" if count > 1 else ""))
    if (speed := throughput(record)) is not None:
        found.append(Tile("throughput", number(speed[0]), speed[1]))
    if (memory := _peak(record)) is not None:
        found.append(memory)
    return found


def _detail(record: RunRecord, name: str) -> str:
    """Returns the mean for the last training loss, the best value for the metric that chooses the checkpoint."""
    if name == TRAINING_LOSS:
        mean = _last(record, "train_loss")
        return "last logged" + ("" if mean is None else f"; mean of the run {number(mean)}")
    watched = "eval_" + str(record.best.get("name") or "").removeprefix("eval_")
    best, step = record.best.get("metric"), record.best.get("step")
    if name == watched and is_number(best):
        return f"best {number(best)}" + (f" at step {number(step)}" if step else "")
    return ""


def _peak(record: RunRecord) -> Tile | None:
    marks = [mark for session in record.sessions for mark in session.marks]
    device = device_name(record) or "device"
    for column, name in ((LIVE, f"tensors on {device}"), (RESIDENT, "of the process")):
        sizes = [size for mark in marks if (size := mark[column]) is not None]
        if sizes:
            return Tile("peak memory", format_bytes(max(sizes)), f"{name}, at logs")
    return None


# Sections


_ORIGIN = {"command": "command line", "commit": "git commit", "dataset": "dataset", "base_model": "base model"}


def origin_rows(record: RunRecord) -> list[Row]:
    """Returns the origin of the run, and its best checkpoint."""
    rows: list[Row] = [(label, str(record.origin[name])) for name, label in _ORIGIN.items() if record.origin.get(name)]
    if checkpoint := record.best.get("checkpoint"):
        name, metric, step = (record.best.get(key) for key in ("name", "metric", "step"))
        told = f": {metric_name(name)} {number(metric)}" if name and is_number(metric) else ""
        rows.append(("best checkpoint", f"{checkpoint}{told}" + (f" at step {number(step)}" if step else "")))
    return rows


def not_shown(record: RunRecord) -> str:
    """Says how many values the page leaves out; "" if none."""
    words = str(record.origin.get("command") or "").replace("'", "").split()
    hidden = sum(word.endswith(NOT_SHOWN) for word in words)
    arguments = sum(NOT_SHOWN in (v if isinstance(v, list) else [v]) for v in record.arguments.values())
    if not hidden and not arguments:
        return ""
    return (
        f"{NOT_SHOWN} stands for values that are not shown: {hidden} on the command line, {arguments} of arguments. "
        f"{page('report')} says which are shown."
    )


def device_rows(record: RunRecord) -> list[Row]:
    """Returns the chosen device and the rejected ones, each with the reason."""
    device = record.device
    if not device:
        return []
    rows: list[Row] = [("chosen", device_name(record), str(device.get("reason") or ""))]
    for other in device.get("rejected", []):
        rows.append(("not", str(other["name"]), f"{other.get('why')}; {other.get('remedy')}"))
    rows += [("note", "", str(note)) for note in device.get("notes") or ()]
    if (size := device.get("world_size") or 1) > 1:
        rows.append(("processes", str(size), "this is the report of the first one"))
    return rows


def shape_rows(record: RunRecord) -> list[Row]:
    """Returns the facts about batches and lengths."""
    data = record.data
    rows: list[Row] = []
    if "batch" in data:
        parts = [f"{number(data.get('batch_per_device'))} on the device"]
        if (accumulated := data.get("accumulation") or 1) > 1:
            parts.append(f"{accumulated} accumulated")
        if (processes := data.get("processes") or 1) > 1:
            parts.append(f"{processes} processes")
        how = f" ({', '.join(parts)})" if len(parts) > 1 else ""
        rows.append(("examples in an update", number(data["batch"]) + how))
    elif "batch_per_device" in data:
        rows.append(("examples in a batch", number(data["batch_per_device"])))
    if "examples" in data:
        rows.append(("examples to train on", number(data["examples"])))
    if "sampling" in data:
        rows.append(("order", str(data["sampling"]).replace("_", " ")))
    if lengths := data.get("lengths"):
        named = [f"{name} {number(round(value))}" for name, value in lengths.items() if is_number(value)]
        rows.append(("tokens of an example", ", ".join(named)))
    if "buckets" in data:
        rows.append(("padded to", ", ".join(map(str, data["buckets"]))))
    rows += _padding(record)
    if "shapes" in record.fallback:
        text = f"{number(record.fallback['shapes'])}, each a graph that hardware compiles"
        rows.append(("distinct shapes", text))
    return rows


def _padding(record: RunRecord) -> list[Row]:
    real, tokens = padded_tokens(record)
    if real and tokens:
        return [("padding", _padding_text(real, tokens))]
    each = tokens_per_example(record)
    if each is None and "batch" not in record.data:
        return []
    if each is None:
        return [("padding", "not known: nothing tells the lengths without going through the examples")]
    rows: list[Row] = [("tokens of an example in a batch", f"{number(each)} with padding, on average")]
    mean: Any = record.data.get("lengths", {}).get("mean")
    if is_number(mean) and 0 < mean <= each:
        rows.append(("padding", _padding_text(mean, each)))
    return rows


def _padding_text(real: float, tokens: float) -> str:
    return f"{share(tokens - real, tokens)} of all tokens; {tokens / real:.2f} padded per real token"


def padded_tokens(record: RunRecord) -> tuple[int, int]:
    """Returns the real tokens and all tokens of an epoch of length buckets; 0 and 0 if unknown."""
    padded = record.data.get("padded", [])
    return sum(entry["real"] for entry in padded), sum(entry["tokens"] for entry in padded)


def tokens_per_example(record: RunRecord) -> float | None:
    """Returns tokens with padding, from the counted operations; None if those of one token are unknown."""
    each, batch = record.model.get("operations_per_token"), record.data.get("batch")
    marks = [mark for session in record.sessions[-1:] for mark in session.marks]
    if not each or not batch or len(marks) < 2 or marks[-1][0] == marks[0][0]:
        return None
    tokens = (marks[-1][2] - marks[0][2]) / each
    return tokens / ((marks[-1][0] - marks[0][0]) * batch) or None


def padding_table(record: RunRecord) -> Table:
    """Returns the batches of an epoch by padded length."""
    table = Table(("padded to", "batches", "tokens", "padding"), numbers=(0, 1, 2, 3))
    for entry in record.data.get("padded", []):
        tokens = entry["tokens"]
        padding = share(tokens - entry["real"], tokens)
        table.rows.append((number(entry["length"]), number(entry["batches"]), number(tokens), padding))
    return table


def fallback_table(record: RunRecord) -> tuple[str, Table]:
    """Returns a sentence about the operators that fell back to the CPU, and the operators."""
    table = Table(("operator", "calls", "shapes"), numbers=(1, 2))
    operators = record.fallback.get("operators", [])
    for entry in operators[:_SHOWN_OPERATORS]:
        counts = ("not counted" if entry.get(key) is None else number(entry[key]) for key in ("calls", "shapes"))
        table.rows.append((str(entry.get("name")), *counts))
    more = f" {len(operators) - _SHOWN_OPERATORS} more are not listed." if len(operators) > _SHOWN_OPERATORS else ""
    return str(record.fallback.get("text") or "") + more, table


_TELLING = ("begin", "resume", "off", "warning", "fault", "stop", "end")
_WORDS = {"begin": "began", "resume": "resumed", "stop": "stopped", "end": "ended"}


def event_table(record: RunRecord) -> Table:
    """Returns the time line in words, without checkpoints and evaluations, which the chart marks."""
    table = Table(("time", "step", "what"), numbers=(0, 1))
    for event in record.events:
        if event.kind in _TELLING:
            word = _WORDS.get(event.kind, event.kind)
            between = ": " if event.kind in ("off", "warning", "fault") else " "
            text = between.join(part for part in (word, event.text) if part)
            table.rows.append((duration(event.seconds), number(event.step), text))
    return table


def counts_of_events(record: RunRecord) -> str:
    """Counts checkpoints and evaluations, in a sentence."""
    parts = []
    for kind in ("checkpoint", "evaluation"):
        count = sum(event.kind == kind for event in record.events)
        if count:
            parts.append(counted(count, kind))
    if not parts:
        return ""
    best = record.best.get("checkpoint")
    return " and ".join(parts) + "." + (f" The best checkpoint is {best}." if best else "")


def argument_table(record: RunRecord) -> Table:
    """Returns the arguments that differ from their defaults."""
    table = Table(("argument", "value", "default"))
    for name, values in sorted(record.changed.items()):
        if isinstance(values, list) and len(values) == 2:
            table.rows.append((name, *map(plain, values)))
    return table


def plain(value: Any) -> str:
    """Returns the value of an argument as a page shows it."""
    if value is None or value == "":
        return "–"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return ", ".join(map(plain, value)) if isinstance(value, list) and value else str(value)


def environment_rows(record: RunRecord) -> list[Row]:
    """Returns versions, machine and the variables that matter."""
    facts = record.environment
    if not facts:
        return []
    packages, torch = facts.get("packages", {}), facts.get("torch_version")
    versions = {"mps_trainer": facts.get("mps_trainer"), **packages, "torch": torch}
    named = ", ".join(f"{name} {versions[name]}" for name in ("mps_trainer", *PACKAGES) if versions.get(name))
    system = "macOS" if facts.get("system") == "Darwin" else str(facts.get("system") or "")
    memory: Any = facts.get("memory_bytes")
    machine = [facts.get("chip"), facts.get("model"), f"{format_bytes(memory)} of memory" if is_number(memory) else ""]
    variables = facts.get("environment", {})
    model = record.model
    rows: list[Row] = [("packages", named), ("Python", f"{facts.get('python_version')}, {facts.get('machine')}")]
    rows += [("system", f"{system} {facts.get('os_version') or ''}".strip())]
    rows += [("machine", ", ".join(str(part) for part in machine if part))]
    rows += [("variables", ", ".join(f"{k}={v}" for k, v in variables.items()) or "none that matter are set")]
    if model:
        trained = model.get("trained")
        some = "" if trained == model.get("parameters") else f", {number(trained)} of them trained"
        text = f"{model.get('class')}, {number(model.get('parameters'))} parameters{some}, {model.get('dtype')}"
        rows.insert(0, ("model", text))
    if record.sessions:
        rows.append(("begun", date(record.sessions[0].begun)))
    return [row for row in rows if row[1]]
