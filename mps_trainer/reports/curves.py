"""Turns the record of a run into the curves of its charts: plain numbers, nothing drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .record import HELD, LIVE, OPERATIONS, RESIDENT, SECONDS, STEP, Event, RunRecord, is_finite

SHOWN = 1500  # points of a curve; a chart has fewer pixels

_STRETCH = 0.2  # seconds of training that a rate is the mean of at least; less is noise

# of an evaluation, and no metric of the model
_SPEEDS = ("_runtime", "_per_second", "_model_preparation_time")


@dataclass
class Curve:
    """One line of a chart: steps ascending, values finite.

    In a chart over time, `steps` are seconds on the training clock.
    """

    name: str
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    marked: bool = False  # each point is an evaluation, and is shown as one
    color: int | None = None  # None: that of its place in the chart

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def last(self) -> float:
        return self.values[-1]


@dataclass
class Chart:
    """The curves in one frame."""

    key: str
    title: str
    curves: list[Curve]
    unit: str = ""  # of the values
    log: bool = False  # a logarithmic axis
    from_zero: bool = False
    over_time: bool = False


def charts(record: RunRecord) -> list[Chart]:
    """Returns the charts of all that was measured at two steps at least; one point is no curve."""
    found = [
        Chart("loss", "Loss", losses(record)),
        *metric_charts(record),
        Chart("learning_rate", "Learning rate", [logged(record, "learning_rate", "learning rate")], from_zero=True),
        Chart("grad_norm", "Gradient norm", [logged(record, "grad_norm", "gradient norm")]),
        _over_time("throughput", "Throughput", [samples_per_second(record)], "samples/s"),
        _over_time("tokens", "Tokens", [tokens_per_second(record)], "tokens/s"),
        _over_time("memory", "Memory", memory_curves(record), "GiB"),
    ]
    for chart in found:
        chart.curves = [thinned(curve) for curve in chart.curves if len(curve.steps) > 1]
        if chart.key in ("loss", "grad_norm"):
            chart.log = _spans(chart.curves)
    return [chart for chart in found if chart.curves]


def _over_time(key: str, title: str, curves: list[Curve], unit: str) -> Chart:
    return Chart(key, title, curves, unit, from_zero=True, over_time=True)


def logged(record: RunRecord, key: str, name: str, marked: bool = False) -> Curve:
    """Returns the finite values that the history has under `key`; the time line tells of the others."""
    points = {entry["step"]: entry[key] for entry in record.history if key in entry and is_finite(entry[key])}
    steps = sorted(points)
    return Curve(name, steps, [points[step] for step in steps], marked)


def losses(record: RunRecord) -> list[Curve]:
    """Returns the losses of training and of each evaluation."""
    names = [name for name in metric_names(record) if name.endswith("_loss")]
    evaluations = [logged(record, name, _evaluation(name), True) for name in names]
    return [logged(record, "loss", "training"), *evaluations]


def _evaluation(loss: str) -> str:
    """eval_loss -> "evaluation", eval_test_loss -> "test"."""
    return loss.removesuffix("_loss").removeprefix("eval_").replace("eval", "evaluation").replace("_", " ")


def metric_names(record: RunRecord) -> list[str]:
    """Returns the names of the metrics of evaluations, in the order in which they came first."""
    names: dict[str, None] = {}
    for entry in record.history:
        if "loss" in entry or "train_runtime" in entry:
            continue
        for name in entry:
            if name not in ("step", "epoch", "num_input_tokens_seen") and not name.endswith(_SPEEDS):
                names[name] = None
    return list(names)


def metric_charts(record: RunRecord) -> list[Chart]:
    """Returns a chart for the metrics that are shares of 1, and one for each of the others."""
    curves = [
        logged(record, name, name.removeprefix("eval_").replace("_", " "), True)
        for name in metric_names(record)
        if not name.endswith("_loss")
    ]
    shares = [curve for curve in curves if len(curve.steps) > 1 and all(0 <= value <= 1 for value in curve.values)]
    others = [curve for curve in curves if len(curve.steps) > 1 and curve not in shares]
    charts = [Chart("metrics", "Metrics", shares[:8])] if shares else []
    return charts + [Chart(f"metric-{i}", curve.name, [curve]) for i, curve in enumerate(others[:6])]


def samples_per_second(record: RunRecord) -> Curve:
    """Returns the rate between marks, without the time of evaluations."""
    batch = record.data.get("batch") or 0
    return _rates(record, "samples/s", lambda before, after: (after[STEP] - before[STEP]) * batch)


def tokens_per_second(record: RunRecord) -> Curve:
    """Returns the rate of tokens with padding, from the operations that the Trainer counts for each token."""
    each = record.model.get("operations_per_token") or 0
    return _rates(
        record, "tokens/s", lambda before, after: (after[OPERATIONS] - before[OPERATIONS]) / each if each else 0
    )


def _rates(record: RunRecord, name: str, amount: Callable[[Any, Any], float]) -> Curve:
    curve = Curve(name)
    for session in record.sessions:
        before: Any = session.marks[0] if session.marks else None
        for after in session.marks[1:]:
            seconds = after[SECONDS] - before[SECONDS] - _evaluating(record.events, before, after)
            is_only = after is session.marks[-1] and not curve
            if after[STEP] <= before[STEP] or (seconds < _STRETCH and not is_only):
                continue
            if seconds > 0 and (done := amount(before, after)) > 0:
                curve.steps.append(after[SECONDS])
                curve.values.append(done / seconds)
            before = after
    return curve


def _evaluating(events: list[Event], before: Any, after: Any) -> float:
    return sum(
        event.took
        for event in events
        if event.kind == "evaluation" and before[SECONDS] < event.seconds <= after[SECONDS]
    )


def memory_curves(record: RunRecord) -> list[Curve]:
    """Returns memory at the marks in GiB."""
    device = str(record.device.get("device", "device"))
    curves = []
    for column, name in ((LIVE, f"tensors on {device}"), (HELD, f"held for {device}"), (RESIDENT, "process")):
        curve = Curve(name)
        for mark in (mark for session in record.sessions for mark in session.marks):
            if mark[column] is not None and (not curve.steps or mark[SECONDS] > curve.steps[-1]):
                curve.steps.append(mark[SECONDS])
                curve.values.append(mark[column] / 2**30)
        curves.append(curve)
    return curves


def thinned(curve: Curve, most: int = SHOWN) -> Curve:
    """Returns the curve with about `most` points: the lowest and the highest of each stretch, to keep spikes."""
    count = len(curve.steps)
    if count <= most:
        return curve
    kept = {0, count - 1}
    width = -(-2 * count // most)
    for start in range(0, count, width):
        stretch = range(start, min(start + width, count))
        kept |= {min(stretch, key=curve.values.__getitem__), max(stretch, key=curve.values.__getitem__)}
    order = sorted(kept)
    return replace(curve, steps=[curve.steps[i] for i in order], values=[curve.values[i] for i in order])


def _spans(curves: list[Curve]) -> bool:
    """Returns True if the values are above 0 and spread over more than two powers of ten."""
    values = [value for curve in curves for value in curve.values]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 100
