"""From the record of a run to the curves of its charts: plain numbers, nothing drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .record import HELD, LIVE, OPERATIONS, RESIDENT, SECONDS, STEP, Event, RunRecord, is_finite

SHOWN = 1500  # points of a curve; a chart has fewer pixels

_STRETCH = 0.2  # seconds of training that a rate is the mean of at least; less is noise

# of an evaluation, and no metric of the model
_SPEEDS = ("_runtime", "_per_second", "_model_preparation_time")


@dataclass
class Curve:
    """One line: steps ascending, values finite. `marked`: each point is an evaluation, and is shown as one."""

    name: str
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    marked: bool = False

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def last(self) -> float:
        return self.values[-1]


@dataclass
class Chart:
    """What is drawn in one frame.

    Args:
        unit: of the values, "" for none.
        log: a logarithmic axis.
        note: a sentence below it.
    """

    key: str
    title: str
    curves: list[Curve]
    unit: str = ""
    log: bool = False
    from_zero: bool = False
    note: str = ""


def charts(record: RunRecord) -> list[Chart]:
    """Those for which the record has something to show."""
    throughput, memory = samples_per_second(record), memory_curves(record)
    found = [
        Chart("loss", "Loss", losses(record)),
        *metric_charts(record),
        Chart("learning_rate", "Learning rate", [logged(record, "learning_rate", "learning rate")], from_zero=True),
        Chart("grad_norm", "Gradient norm", [logged(record, "grad_norm", "gradient norm")]),
        Chart("throughput", "Throughput", [throughput], "samples/s", from_zero=True),
        Chart("tokens", "Tokens", [tokens_per_second(record)], "tokens/s", from_zero=True),
        Chart("memory", "Memory", memory, "GiB", from_zero=True),
    ]
    for chart in found:
        chart.curves = [thinned(curve) for curve in chart.curves if curve]
        if chart.key in ("loss", "grad_norm"):
            chart.log = _spans(chart.curves)
    return [chart for chart in found if chart.curves]


def logged(record: RunRecord, key: str, name: str, marked: bool = False) -> Curve:
    """What the history has under `key`; values that are not finite are left out, which the time line tells."""
    points = {entry["step"]: entry[key] for entry in record.history if key in entry and is_finite(entry[key])}
    steps = sorted(points)
    return Curve(name, steps, [points[step] for step in steps], marked)


def losses(record: RunRecord) -> list[Curve]:
    """Of training and of each evaluation."""
    names = [name for name in metric_names(record) if name.endswith("_loss")]
    evaluations = [logged(record, name, _evaluation(name), True) for name in names]
    return [logged(record, "loss", "training"), *evaluations]


def _evaluation(loss: str) -> str:
    """eval_loss -> "evaluation", eval_test_loss -> "test"."""
    return loss.removesuffix("_loss").removeprefix("eval_").replace("eval", "evaluation").replace("_", " ")


def metric_names(record: RunRecord) -> list[str]:
    """The metrics of evaluations, in the order in which they came first."""
    names: dict[str, None] = {}
    for entry in record.history:
        if "loss" in entry or "train_runtime" in entry:
            continue
        for name in entry:
            if name not in ("step", "epoch", "num_input_tokens_seen") and not name.endswith(_SPEEDS):
                names[name] = None
    return list(names)


def metric_charts(record: RunRecord) -> list[Chart]:
    """One for the metrics that are shares of 1, and one for each of the others."""
    curves = [
        logged(record, name, name.removeprefix("eval_").replace("_", " "), True)
        for name in metric_names(record)
        if not name.endswith("_loss")
    ]
    shares = [curve for curve in curves if curve and all(0 <= value <= 1 for value in curve.values)]
    others = [curve for curve in curves if curve and curve not in shares]
    charts = [Chart("metrics", "Metrics", shares[:8])] if shares else []
    return charts + [Chart(f"metric-{i}", curve.name, [curve]) for i, curve in enumerate(others[:6])]


def samples_per_second(record: RunRecord) -> Curve:
    """Between two marks, without the time that evaluations took."""
    batch = record.data.get("batch") or 0
    return _rates(record, "samples/s", lambda before, after: (after[STEP] - before[STEP]) * batch)


def tokens_per_second(record: RunRecord) -> Curve:
    """With padding; from the operations that the Trainer counts, which are so many for each token."""
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
            if after[STEP] <= before[STEP] or (seconds < _STRETCH and after is not session.marks[-1]):
                continue
            if seconds > 0 and (done := amount(before, after)) > 0:
                curve.steps.append(after[STEP])
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
    """In GiB."""
    device = str(record.device.get("device", "device"))
    named = ((LIVE, f"tensors on {device}"), (HELD, f"held for {device}"), (RESIDENT, "process"))
    return [_memory(record, column, name) for column, name in named]


def _memory(record: RunRecord, column: int, name: str) -> Curve:
    curve = Curve(name)
    for session in record.sessions:
        for mark in session.marks:
            size = mark[column]
            if size is not None and (not curve.steps or mark[STEP] > curve.steps[-1]):
                curve.steps.append(mark[STEP])
                curve.values.append(size / 2**30)
    return curve


def thinned(curve: Curve, most: int = SHOWN) -> Curve:
    """With at most about `most` points: of each stretch the lowest and the highest, so that no spike is lost."""
    count = len(curve.steps)
    if count <= most:
        return curve
    kept = {0, count - 1}
    width = -(-2 * count // most)
    for start in range(0, count, width):
        stretch = range(start, min(start + width, count))
        kept |= {min(stretch, key=curve.values.__getitem__), max(stretch, key=curve.values.__getitem__)}
    order = sorted(kept)
    return Curve(curve.name, [curve.steps[i] for i in order], [curve.values[i] for i in order], curve.marked)


def _spans(curves: list[Curve]) -> bool:
    """Whether the values are above 0 and spread over more than two powers of ten."""
    values = [value for curve in curves for value in curve.values]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 100
