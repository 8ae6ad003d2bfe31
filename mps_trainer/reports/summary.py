"""Computes what a page shows in words and numbers: main metric, tiles, facts and tables. No markup."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ..devices.facts import PACKAGES, machine_line, system_line
from ..utils.text import counted, format_bytes
from . import curves
from .formatting import date, duration, metric_name, number, percentage, scientific
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
        return whole, f"of the {'last session' if is_resumed else 'whole run'}{more}"
    return None if median is None else (median, "median between logs")


def main_metric(record: RunRecord) -> str | None:
    """Returns the name of the metric that the page shows first, or the name of a loss, or None.

    It is the metric that chooses the best checkpoint, or else the first one that training does not log too.
    """
    names, watched = curves.metric_names(record), _watched(record)
    if watched in names and not watched.endswith("_loss"):
        return watched
    losses = [name for name in names if name.endswith("_loss")]
    training = [name for name in ("loss", "train_loss") if _last(record, name) is not None]
    return next(iter([*curves.scores(record), *losses, *training]), None)


def _watched(record: RunRecord) -> str:
    """Returns the name in the log of the metric that chooses the best checkpoint."""
    return "eval_" + str(record.best.get("name") or "").removeprefix("eval_")


def hero(record: RunRecord) -> Row | None:
    """Returns label, value and explanation of the main metric: of the model that is kept, the best or the last."""
    name = main_metric(record)
    if name is None:
        return None
    if name in ("loss", "train_loss"):
        label = _TRAINING_LOSS if name == "loss" else _MEAN_LOSS
        return label, number(_last(record, name)), _explanation_of_loss(record) if name == "loss" else ""
    points = _by_step(record, name)
    last, best = max(points), curves.best_step(record)
    best_step = best[0] if best and best[0] in points and name in (_watched(record), "eval_loss") else None
    if best_step is None:
        return metric_name(name), number(points[last]), f"last evaluation, step {number(last)}"
    if best_step == last:
        return metric_name(name), number(points[last]), f"best and last evaluation, step {number(last)}"
    best_text = f"{number(points[best_step])} at step {number(best_step)}"
    last_text = f"{number(points[last])} at step {number(last)}"
    if record.arguments.get("load_best_model_at_end") and record.outcome.get("kind") == FINISHED:
        return (
            metric_name(name),
            number(points[best_step]),
            f"best checkpoint, step {number(best_step)}; last {last_text}",
        )
    return metric_name(name), number(points[last]), f"last evaluation, step {number(last)}; best {best_text}"


def _by_step(record: RunRecord, name: str) -> dict[float, float]:
    return {entry["step"]: entry[name] for entry in curves.history(record) if name in entry}


def tiles(record: RunRecord) -> list[Row]:
    """Returns loss, time, speed and memory: each with label, value and an explanation."""
    found: list[Row] = []
    if main_metric(record) not in ("loss", "train_loss"):
        if (loss := _last(record, "loss")) is not None:
            found.append((_TRAINING_LOSS, number(loss), _explanation_of_loss(record)))
        elif (loss := _last(record, "train_loss")) is not None:
            found.append((_MEAN_LOSS, number(loss), ""))
    if record.seconds:
        count = len(record.sessions)
        explanation = f"in {count} sessions" if count > 1 else _since(record).strip()
        found.append(("training time", duration(record.seconds), explanation))
    if (speed := throughput(record)) is not None:
        found.append(("throughput", f"{number(speed[0])} samples/s", speed[1]))
    device = device_name(record) or "device"
    for column, name in ((LIVE, f"tensors on {device}"), (RESIDENT, "of the process")):
        marks = [mark for session in record.sessions for mark in session.marks]
        if sizes := [size for mark in marks if (size := mark[column]) is not None]:
            return [*found, ("highest logged memory", format_bytes(max(sizes)), name)]
    return found


def _explanation_of_loss(record: RunRecord) -> str:
    mean = _last(record, "train_loss")
    return "last logged" + ("" if mean is None else f"; mean of the run {number(mean)}")


def _at_best_step(record: RunRecord) -> str:
    step = record.best.get("step")
    return f" at step {number(step)}" if step else ""


def evaluation_table(record: RunRecord) -> tuple[list[str], list[Row]]:
    """Returns head and rows of a table of all metrics in the best and in the last evaluation, which may be one column.

    A metric that the last evaluation lacks has its last value, with the step.
    """
    names = sorted(curves.metric_names(record), key=lambda name: name.endswith("_loss"))
    values = {name: _by_step(record, name) for name in names}
    if not values:
        return [], []
    steps = {step for points in values.values() for step in points}
    last, best = max(steps), curves.best_step(record)
    reason = best[1].replace(" evaluation", "") if best else ""
    head = f"last, step {number(last)}"
    if best and best[0] == last and len(steps) > 1:
        head = f"{reason} and {head}"
    elif len(steps) == 1:
        head = f"step {number(last)}"
    is_apart = best is not None and best[0] != last and best[0] in steps
    rows = []
    for name, points in values.items():
        latest = max(points)
        cell = number(points[latest]) + ("" if latest == last else f" at step {number(latest)}")
        before = [number(points[best[0]]) if best[0] in points else "–"] if best and is_apart else []
        rows.append((metric_name(name), *before, cell))
    return ["metric", *([f"{reason}, step {number(best[0])}"] if best and is_apart else []), head], rows


def class_table(record: RunRecord) -> list[Row]:
    """Returns name, examples, precision, recall and F1 of each class, from the confusion matrix."""
    confusion, classes = record.classification.get("confusion") or [], record.classification.get("classes") or []
    rows: list[Row] = []
    for place, (name, counts) in enumerate(zip(classes, confusion, strict=False)):
        hits, examples = counts[place], sum(counts)
        predicted = sum(row[place] for row in confusion)
        f1 = f"{2 * hits / (examples + predicted):.3f}" if examples + predicted else "–"
        rows.append((name, number(examples), percentage(hits, predicted), percentage(hits, examples), f1))
    return rows


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
        return scientific(value) if 0 < abs(value) < 1e-3 else f"{value:g}"
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
