"""Chooses the charts of a page and computes their curves from the record: plain numbers, nothing drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .record import HELD, LIVE, OPERATIONS, RESIDENT, SECONDS, STEP, RunRecord, is_finite

_STRETCH = 0.2  # seconds of training that a rate is the mean of at least; less is noise

_FEW = 5  # points of the curves of a small chart

# Ends of names that an evaluation logs and that are no metrics of the model, such as TRL's eval_num_tokens.
_NO_METRICS = ("_runtime", "_per_second", "_model_preparation_time", "_num_tokens")


@dataclass
class Curve:
    """One line of a chart: x ascending, y finite.

    A curve that is alone in its chart, and means what the title says, has no name.
    """

    name: str
    x: list[float] = field(default_factory=list)  # steps, or seconds on the training clock
    y: list[float] = field(default_factory=list)
    color: int | None = None  # None: the color of its place in the chart


@dataclass
class Chart:
    """The curves in one frame."""

    title: str
    curves: list[Curve]
    unit: str = ""  # the unit of y
    log: bool = False  # True: the axis of y is logarithmic
    from_zero: bool = False
    over_time: bool = False
    small: bool = False  # True: less important than others, or of few points
    wide: bool = False  # True: beside a small one
    best: tuple[float, str] | None = None  # the step of the best checkpoint or evaluation, and what it is best in


def charts(record: RunRecord) -> list[Chart]:
    """Returns the charts of everything that was measured at two steps at least; one point is no curve."""
    batch, operations = record.data.get("batch") or 0, record.model.get("operations_per_token") or 0
    found = [
        Chart("Loss", losses(record), log=True),
        *metric_charts(record),
        Chart("Learning rate", [logged(record, "learning_rate")], from_zero=True, small=True),
        Chart("Gradient norm", [logged(record, "grad_norm")], log=True, small=True),
        Chart("Throughput", [rates(record, STEP, batch)], "samples/s", from_zero=True, over_time=True, small=True),
        Chart(
            "Tokens",  # the Trainer counts the operations of each token, padding included
            [rates(record, OPERATIONS, 1 / operations if operations else 0)],
            "tokens/s",
            from_zero=True,
            over_time=True,
            small=True,
        ),
        Chart("Step time", step_times(record), "s", from_zero=True, over_time=True, small=True),
        Chart("Memory", memory_curves(record), "GiB", from_zero=True, over_time=True, small=True),
    ]
    found[0].best = best_step(record)
    for chart in found:
        chart.curves = [curve for curve in chart.curves if len(curve.x) > 1]
        values = [value for curve in chart.curves for value in curve.y]
        # a logarithmic axis is for values that spread over more than two powers of ten
        chart.log = chart.log and bool(values) and min(values) > 0 and max(values) / min(values) > 100
        chart.small = chart.small or all(len(curve.x) <= _FEW for curve in chart.curves)
    return arranged([chart for chart in found if chart.curves])


def arranged(found: Sequence[Chart]) -> list[Chart]:
    """Returns the large charts, two in a row, and then the small ones, three in a row. An odd large one is wide."""
    large, small = ([chart for chart in found if chart.small is is_small] for is_small in (False, True))
    for chart in large:
        chart.wide = bool(small) and len(large) % 2 == 1 and chart is large[-1]
    return large + small


def best_step(record: RunRecord) -> tuple[float, str] | None:
    """Returns the step of the best checkpoint, or else that of the lowest evaluation loss, with the reason."""
    if is_finite(step := record.best.get("step")) and step:
        return step, f"best {record.best.get('name') or 'checkpoint'}".replace("eval_", "").replace("_", " ")
    evaluated = logged(record, "eval_loss")
    if len(evaluated.x) < 2:
        return None
    return evaluated.x[evaluated.y.index(min(evaluated.y))], "lowest evaluation loss"


def history(record: RunRecord) -> list[dict[str, Any]]:
    """Returns the log, in which an evaluation after training adds to the step of its model, and replaces nothing.

    It is of the best model if that was loaded. It may be of other data, as GLUE's second part of MNLI.
    """
    ends = [place for place, entry in enumerate(record.history) if "train_runtime" in entry]
    if not ends:
        return record.history
    during, after = record.history[: ends[-1] + 1], record.history[ends[-1] + 1 :]
    known = {(entry["step"], name) for entry in during for name in entry}
    best = record.best.get("step") if record.arguments.get("load_best_model_at_end") else None
    for entry in after:
        step = best if best and is_finite(best) else entry["step"]
        new = {name: value for name, value in entry.items() if (step, name) not in known}
        known |= {(step, name) for name in new}
        during = [*during, {**new, "step": step}]
    return during


def logged(record: RunRecord, key: str, name: str = "") -> Curve:
    """Returns the finite values that the history has under `key`; the time line shows the others."""
    points = {entry["step"]: entry[key] for entry in history(record) if key in entry and is_finite(entry[key])}
    steps = sorted(points)
    return Curve(name, steps, [points[step] for step in steps])


def losses(record: RunRecord) -> list[Curve]:
    """Returns the losses of training and of each evaluation."""
    curves = [logged(record, "loss", "training")]
    for key in metric_names(record):
        if key.endswith("_loss"):  # eval_loss is "evaluation", eval_test_loss is "test"
            name = key.removesuffix("_loss").removeprefix("eval_").replace("eval", "evaluation").replace("_", " ")
            curves.append(logged(record, key, name))
    return curves


def metric_names(record: RunRecord) -> list[str]:
    """Returns the names of the metrics of evaluations, in the order in which they came first."""
    names: dict[str, None] = {}
    for entry in record.history:
        if "loss" in entry or "train_runtime" in entry:
            continue
        for name in entry:
            if name not in ("step", "epoch", "num_input_tokens_seen") and not name.endswith(_NO_METRICS):
                names[name] = None
    return list(names)


def scores(record: RunRecord) -> list[str]:
    """Returns the names of metrics that training does not log too, as it does losses and TRL's entropy."""
    in_training = {name for entry in record.history if "loss" in entry for name in entry}
    return [
        name
        for name in metric_names(record)
        if name.removeprefix("eval_") not in in_training and not name.endswith("_loss")
    ]


def metric_charts(record: RunRecord) -> list[Chart]:
    """Returns a chart for the metrics between 0 and 1, and one for each of the others."""
    keys = [key for key in metric_names(record) if not key.endswith("_loss")]
    curves = [logged(record, key, key.removeprefix("eval_").replace("_", " ")) for key in keys]
    curves = [curve for curve in curves if len(curve.x) > 1]
    shares = [curve for curve in curves if all(0 <= value <= 1 for value in curve.y)]
    others = [curve for curve in curves if curve not in shares][:6]
    important = {name.removeprefix("eval_").replace("_", " ") for name in scores(record)}
    return [
        Chart("Metrics", shares[:8]),
        *(Chart(curve.name, [replace(curve, name="")], small=curve.name not in important) for curve in others),
    ]


def rates(record: RunRecord, column: int, factor: float) -> Curve:
    """Returns how much `column` of the marks, times `factor`, grows in a second, without the time of evaluations."""
    curve = Curve("")
    evaluations = [event for event in record.events if event.kind == "evaluation"]
    for session in record.sessions:
        before: Any = session.marks[0] if session.marks else None
        for after in session.marks[1:]:
            begin, end = before[SECONDS], after[SECONDS]
            seconds = end - begin - sum(event.took for event in evaluations if begin < event.seconds <= end)
            is_only = after is session.marks[-1] and not curve.x
            if after[STEP] <= before[STEP] or (seconds < _STRETCH and not is_only):
                continue
            rate = (after[column] - before[column]) * factor / seconds if seconds > 0 else 0
            if rate > 0 and is_finite(rate):
                curve.x.append(end)
                curve.y.append(rate)
            before = after
    return curve


def step_times(record: RunRecord) -> list[Curve]:
    """Returns the seconds of an optimizer step, without evaluations, and once more those of slow steps."""
    rate, slow, spans = rates(record, STEP, 1), Curve("slow"), []
    for event in (event for event in record.events if event.kind == "slow"):
        ends = [each.seconds for each in record.events if each.kind == "steady" and each.seconds > event.seconds]
        ends += [session.offset + session.seconds for session in record.sessions]
        spans.append(
            (event.seconds - event.took, min((end for end in ends if end >= event.seconds), default=math.inf))
        )
    curve = Curve("all steps", rate.x, [1 / y for y in rate.y])
    for x, y in zip(curve.x, curve.y, strict=True):
        if any(begin < x <= end for begin, end in spans):
            slow.x.append(x)
            slow.y.append(y)
    return [curve, slow]


def memory_curves(record: RunRecord) -> list[Curve]:
    """Returns memory at the marks in GiB."""
    device = str(record.device.get("device", "device"))
    curves = []
    for column, name in ((LIVE, f"tensors on {device}"), (HELD, f"held for {device}"), (RESIDENT, "process")):
        curve = Curve(name)
        for mark in (mark for session in record.sessions for mark in session.marks):
            if mark[column] is not None and (not curve.x or mark[SECONDS] > curve.x[-1]):
                curve.x.append(mark[SECONDS])
                curve.y.append(mark[column] / 2**30)
        curves.append(curve)
    return curves


def compared_charts(records: Sequence[RunRecord]) -> list[Chart]:
    """Returns a chart for each measurement, with a curve for each run in the color of the run."""
    together: dict[str, dict[str, Chart]] = {}  # by the title in the page of one run, then in this page
    for position, record in enumerate(records):
        for chart in charts(record):
            for curve in chart.curves:
                title = f"{chart.title}, {curve.name}" if curve.name else chart.title
                shared = together.setdefault(chart.title, {}).setdefault(
                    title, replace(chart, title=title, curves=[], best=None)
                )
                shared.log, shared.small = shared.log and chart.log, shared.small and chart.small
                shared.curves.append(replace(curve, name=record.name, color=position))
    return arranged([chart for group in together.values() for chart in group.values()])


def thinned(curve: Curve, most: int) -> Curve:
    """Returns the curve with about `most` points: the lowest and the highest of each stretch, to keep spikes."""
    count = len(curve.x)
    if count <= most:
        return curve
    kept = {0, count - 1}
    width = -(-2 * count // most)
    for start in range(0, count, width):
        stretch = range(start, min(start + width, count))
        kept |= {min(stretch, key=curve.y.__getitem__), max(stretch, key=curve.y.__getitem__)}
    order = sorted(kept)
    return replace(curve, x=[curve.x[i] for i in order], y=[curve.y[i] for i in order])
