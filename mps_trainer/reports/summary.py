"""Computes what a page shows in words and numbers: headline, facts, and the values of the tables. No markup."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ..devices.facts import PACKAGES, machine_line, system_line
from ..utils.text import counted, format_bytes
from . import curves
from .formatting import date, duration, metric_name, number
from .record import (
    FAILED,
    FINISHED,
    LIVE,
    OPERATIONS,
    RESIDENT,
    RUNNING,
    STEP,
    STOPPED,
    RunRecord,
    is_finite,
    is_number,
)

Row = tuple[str, ...]

_TILES = 6  # metrics in the headline
_TRAINING_LOSS, _MEAN_LOSS = "training loss", "mean training loss"


def outcome(record: RunRecord) -> tuple[str, str, str]:
    """Returns a word for the badge, its class in page.css, and a sentence."""
    kind, text = record.outcome.get("kind"), str(record.outcome.get("text") or "")
    step, most = record.outcome.get("step") or 0, record.outcome.get("max_steps") or 0
    steps = f"{number(step)} of {number(most)} steps" if most else f"{number(step)} steps"
    done = steps + (f" in {duration(record.seconds)}{_since(record)}" if record.seconds else "")
    if device := device_name(record):
        done += f" on {device}"
    if kind == FINISHED:
        return "finished", "good", f"{done}. {text}".strip()
    if kind == STOPPED:
        return "stopped", "neutral", f"Stopped {text} after {done}."
    if kind == FAILED:
        return "failed", "bad", f"After {done}: {text}"
    if kind == RUNNING:
        return "not ended", "neutral", f"{done} when this was written."
    return "unknown end", "neutral", f"{steps}; {record.source} does not tell how the run ended."


def _since(record: RunRecord) -> str:
    """Returns " since step 20" if earlier steps have no record, such as those of transformers' Trainer."""
    first = record.sessions[0].first_step if record.sessions else 0
    return f" since step {number(first)}" if first else ""


def device_name(record: RunRecord) -> str:
    name = str(record.device.get("device") or "")
    return f"simulated {name}" if name and record.device.get("simulated") else name


def model_line(record: RunRecord) -> str:
    """Returns the base model, or the class where the configuration names none, with the number of parameters."""
    if not record.model:
        return ""
    base = str(record.origin.get("base_model") or "").rstrip("/").rpartition("/")[2]
    parameters = f"{number(record.model.get('parameters'))} parameters"
    return f"{base}, {parameters}" if base else f"{record.model.get('class')}, {parameters}, no pretrained model"


def final_metrics(record: RunRecord) -> dict[str, float]:
    """Returns the last value of each metric, then of each loss, and the last training loss.

    Where no training loss was logged, the mean of the run takes its place.
    """
    names = sorted(curves.metric_names(record), key=lambda name: name.endswith("_loss"))
    found = {name: value for name in names if (value := _last(record, name)) is not None}
    for name, label in (("loss", _TRAINING_LOSS), ("train_loss", _MEAN_LOSS)):
        if (value := _last(record, name)) is not None:
            return {**found, label: value}
    return found


def _last(record: RunRecord, name: str) -> float | None:
    return next((entry[name] for entry in reversed(record.history) if name in entry), None)


def throughput(record: RunRecord) -> tuple[float, str] | None:
    """Returns examples per second, as the last line in the terminal has them, and how they were measured.

    That line is of the last session alone. For a run without that line: the median of the rates between two logs.
    """
    rates = curves.rates(record, STEP, record.data.get("batch") or 0).y
    median = statistics.median(rates) if rates else None
    if (whole := _last(record, "train_samples_per_second")) is not None:
        more = "" if median is None else f"; median between logs {number(median)}"
        is_resumed = len(record.sessions) > 1 or _since(record)
        return whole, f"samples/s of the {'last session' if is_resumed else 'whole run'}{more}"
    return None if median is None else (median, "samples/s, median between logs")


def headline(record: RunRecord) -> list[Row]:
    """Returns metrics, loss, time, speed and memory: each with label, value and an explanation."""
    metrics = list(final_metrics(record).items())[:_TILES]
    tiles: list[Row] = [(metric_name(name), number(value), _explanation(record, name)) for name, value in metrics]
    if record.seconds:
        count = len(record.sessions)
        explanation = f"in {count} sessions" if count > 1 else _since(record).strip()
        tiles.append(("training time", duration(record.seconds), explanation))
    if (speed := throughput(record)) is not None:
        tiles.append(("throughput", number(speed[0]), speed[1]))
    device = device_name(record) or "device"
    for column, name in ((LIVE, f"tensors on {device}"), (RESIDENT, "of the process")):
        marks = [mark for session in record.sessions for mark in session.marks]
        if sizes := [size for mark in marks if (size := mark[column]) is not None]:
            return [*tiles, ("peak memory", format_bytes(max(sizes)), f"{name}, at logs")]
    return tiles


def _explanation(record: RunRecord, name: str) -> str:
    """Returns the mean for the last training loss, the best value for the metric that chooses the checkpoint."""
    if name == _TRAINING_LOSS:
        mean = _last(record, "train_loss")
        return "last logged" + ("" if mean is None else f"; mean of the run {number(mean)}")
    watched = "eval_" + str(record.best.get("name") or "").removeprefix("eval_")
    best = record.best.get("metric")
    return f"best {number(best)}{_at_best_step(record)}" if name == watched and is_number(best) else ""


def _at_best_step(record: RunRecord) -> str:
    step = record.best.get("step")
    return f" at step {number(step)}" if step else ""


def metrics_logged_once(record: RunRecord) -> list[tuple[str, float, float]]:
    """Returns name, value and step of the metrics that have neither a curve, being logged once, nor a tile."""
    found, in_tiles = [], list(final_metrics(record))[:_TILES]
    for name in curves.metric_names(record):
        if name in in_tiles:
            continue
        logged = {entry["step"]: entry[name] for entry in record.history if name in entry}
        found += [(metric_name(name), value, step) for step, value in logged.items() if len(logged) == 1]
    return found


def origin(record: RunRecord) -> dict[str, str]:
    """Returns the origin of the run, and its best checkpoint."""
    labels = {"command": "command line", "commit": "git commit", "dataset": "dataset", "base_model": "base model"}
    facts = {label: str(record.origin[name]) for name, label in labels.items() if record.origin.get(name)}
    if checkpoint := record.best.get("checkpoint"):
        name, metric = record.best.get("name"), record.best.get("metric")
        value = f": {metric_name(name)} {number(metric)}" if name and is_number(metric) else ""
        facts["best checkpoint"] = f"{checkpoint}{value}{_at_best_step(record)}"
    return facts


def event_counts(record: RunRecord) -> list[str]:
    """Returns the number of checkpoints and of evaluations, as "2 evaluations"."""
    counts = {kind: sum(event.kind == kind for event in record.events) for kind in ("checkpoint", "evaluation")}
    return [counted(count, kind) for kind, count in counts.items() if count]


def tokens_per_example(record: RunRecord) -> float:
    """Returns tokens with padding, from the operations that the last session counted; 0 if they are not known."""
    operations, batch = record.model.get("operations_per_token"), record.data.get("batch")
    marks = record.sessions[-1].marks if record.sessions else []
    steps = marks[-1][STEP] - marks[0][STEP] if marks else 0
    if not (operations and batch and steps):
        return 0
    tokens: float = (marks[-1][OPERATIONS] - marks[0][OPERATIONS]) / operations / (steps * batch)
    return tokens


def padding(record: RunRecord) -> tuple[float, float]:
    """Returns real tokens and all tokens: of an epoch of length buckets, or of an example; 0 and 0 if unknown."""
    padded = record.data.get("padded", [])
    real: Any = sum(entry["real"] for entry in padded)
    tokens: float = sum(entry["tokens"] for entry in padded)
    if not (real and tokens):
        real, tokens = record.data.get("lengths", {}).get("mean"), tokens_per_example(record)
    return (real, tokens) if is_finite(real) and 0 < real <= tokens else (0, 0)


def argument(value: Any) -> str:
    """Returns the value of an argument as a page shows it."""
    if value is None or value == "":
        return "–"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return ", ".join(map(argument, value)) if isinstance(value, list) and value else str(value)


def environment(record: RunRecord) -> dict[str, str]:
    """Returns model, versions, machine and the variables that matter."""
    found, model = record.environment, record.model
    if not found:
        return {}
    facts = {}
    if model:
        trained, parameters = model.get("trained"), model.get("parameters")
        some = "" if trained == parameters else f", {number(trained)} of them trained"
        facts["model"] = f"{model.get('class')}, {number(parameters)} parameters{some}, {model.get('dtype')}"
        facts["attention"] = str(model.get("attention") or "").removeprefix("attention ")
    versions = {**found.get("packages", {}), "torch": found.get("torch_version")}
    versions = {"mps_trainer": found.get("mps_trainer"), **{name: versions.get(name) for name in PACKAGES}}
    variables = ", ".join(f"{name}={value}" for name, value in found.get("environment", {}).items())
    facts |= {
        "packages": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "Python": f"{found.get('python_version')}, {found.get('machine')}",
        "system": system_line(found),
        "machine": machine_line(found, "chip", "model", "memory_bytes"),
        "variables": variables or "none that matter are set",
        "begun": date(record.sessions[0].begun) if record.sessions else "",
    }
    return {name: value for name, value in facts.items() if value}


def metric_table(records: Sequence[RunRecord]) -> tuple[list[str], list[list[float | None]]]:
    """Returns the names of the metrics that one of the runs has, and their values for each run."""
    metrics = [final_metrics(record) for record in records]
    names = list(dict.fromkeys(name for found in metrics for name in found))
    names.sort(key=lambda name: (name in (_TRAINING_LOSS, _MEAN_LOSS), name.endswith("_loss")))
    return names, [[found.get(name) for name in names] for found in metrics]


def argument_differences(records: Sequence[RunRecord]) -> list[Row]:
    """Returns the arguments that differ between runs whose arguments are known, with their values."""
    # those left out say where a run is, and not what it does
    place = {"output_dir", "overwrite_output_dir", "resume_from_checkpoint", "logging_dir", "run_name"}
    names = sorted({name for record in records for name in record.arguments} - place)
    return _differences(
        [{name: argument(record.arguments.get(name)) for name in names if record.arguments} for record in records]
    )


def surrounding_differences(records: Sequence[RunRecord]) -> list[Row]:
    """Returns what differs in device, origin and environment, with the values."""
    of_one_run = ("command line", "best checkpoint", "begun")
    known = []
    for record in records:
        facts = {"device": device_name(record), **origin(record), **environment(record)}
        known.append({name: value for name, value in facts.items() if value and name not in of_one_run})
    return _differences(known)


def _differences(known: list[dict[str, str]]) -> list[Row]:
    """Returns the facts that have two values at least; ? stands for those that are not known."""
    names = dict.fromkeys(name for facts in known for name in facts)
    rows = [(name, *(facts.get(name, "?") for facts in known)) for name in names]
    return [row for row in rows if len(set(row[1:]) - {"?"}) > 1]
