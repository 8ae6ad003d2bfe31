"""Draws charts as SVG with pygal. Colors, lines and fonts are in page.css, so that light and dark need no script."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pygal
from markupsafe import Markup
from pygal.style import Style

from ..utils.text import as_line
from .curves import Chart, Curve, thinned
from .formatting import duration, number, scientific
from .record import RunRecord

COLORS = 8  # --c0 to --c7 in page.css
_DASHES = 4  # for the runs beyond the colors
_MARKED = 40  # points of a curve up to which each is marked
_POINTS = 2000  # each point of a chart has a text
_FEWEST = 60  # points of a curve
_SIZE = 460, 230  # units, which are pixels at the width of half a page
_SMALL = 310, 180  # a third of a page
_BESIDE_SMALL = 560, 188
_WIDE = 760
_FONT = 12
_LONGEST = 80  # characters of a text

Break = tuple[float, float, str]  # step, seconds on the training clock, and a class of page.css


def color_of(place: int) -> str:
    """Returns the class of page.css for the color of a curve or a run."""
    return f"color-{place % COLORS}"


def draw_curves(chart: Chart, last_step: float, breaks: Sequence[Break] = ()) -> Markup:
    """Returns the chart over the steps, or over time.

    Args:
        last_step: the end of the axis of steps, the same for all charts of a page.
        breaks: resumes and faults, each drawn as a vertical line.
    """
    lines = _grid(chart)
    low, high = lines[0], lines[-1]
    end = max(curve.x[-1] for curve in chart.curves) if chart.over_time else last_step
    unit, divisor = _time_unit(end) if chart.over_time else ("", 1.0)
    heights = [10.0**line for line in lines] if chart.log else lines
    drawn = pygal.XY(
        **_settings(*(_SMALL if chart.small else _BESIDE_SMALL if chart.wide else _SIZE)),
        range=(low, high),
        y_labels=[{"label": label, "value": line} for label, line in zip(_labels(heights), lines, strict=True)],
        y_title=_axis_title(chart),
        xrange=(0, end / divisor or 1),
        x_labels=_ticks(end / divisor or 1, whole=not chart.over_time),
        x_title=f"training time, {unit}" if chart.over_time else "step",
        x_value_formatter=number,
    )
    # the title of a series is its class of page.css
    if chart.best is not None:
        drawn.add("break best", [(chart.best[0], low), (chart.best[0], high)], show_dots=False)
    for step, seconds, kind in breaks:
        x = seconds / divisor if chart.over_time else step
        drawn.add(f"break {kind}", [(x, low), (x, high)], show_dots=False)
    for place, curve in enumerate(chart.curves):
        color = place if curve.color is None else curve.color
        is_marked = len(curve.x) <= _MARKED
        kind = f"curve {color_of(color)} dash-{color // COLORS % _DASHES}{'' if is_marked else ' unmarked'}"
        drawn.add(kind, _points(chart, curve, divisor), dots_size=2.5 if is_marked else 1.5)
    return _svg(drawn, chart.title)


def _points(chart: Chart, curve: Curve, divisor: float) -> list[dict[str, Any]]:
    """Returns the points of a curve, each with its text: few enough for a page of moderate size."""
    curve = thinned(curve, max(_FEWEST, min(_POINTS // 5, _POINTS // len(chart.curves))))
    name = f"{curve.name}, " if len(chart.curves) > 1 else ""
    points = []
    for x, y in zip(curve.x, curve.y, strict=True):
        place = duration(x) if chart.over_time else f"step {number(x)}"
        label = as_line(f"{name}{place}: {number(y)} {chart.unit}", _LONGEST)
        points.append({"value": (x / divisor, _height(chart, y)), "label": label})
    return points


def _height(chart: Chart, value: float) -> float:
    """Returns a point's place on the vertical axis. pygal would make the axis of steps logarithmic too."""
    return math.log10(value) if chart.log else value


def _grid(chart: Chart) -> list[float]:
    """Returns the horizontal lines, powers of ten on a logarithmic axis; the first and the last enclose all points."""
    values = [_height(chart, value) for curve in chart.curves for value in curve.y]
    low, high = min(values), max(values)
    if chart.log:
        return [float(power) for power in range(math.floor(low), math.ceil(high) + 1)]
    if chart.from_zero:
        low = min(low, 0.0)
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-300):  # pygal never ends between two numbers that touch
        low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    step = _round_up((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12 - math.floor(math.log10(step))) for place in range(first, last + 1)]


def _labels(heights: Sequence[float]) -> list[str]:
    """Returns the labels of an axis: all with powers of ten or none, and with enough digits to tell them apart."""
    largest = max(map(abs, heights))
    if largest <= 1e-3 or largest >= 1e9:  # pygal never ends if labels are wider than the chart
        labels = [scientific(height) if height else "0" for height in heights]
        return labels if len(set(labels)) == len(labels) else [f"{height:.10e}" for height in heights]
    labels = [number(height) for height in heights]
    return labels if len(set(labels)) == len(labels) else [f"{height:.10g}" for height in heights]


def _axis_title(chart: Chart) -> str:
    kind, _, metric = chart.title.partition(", ")  # "Metrics, f1" where runs are compared
    if kind == "Metrics" and len(chart.curves) == 1:
        metric = metric or chart.curves[0].name
    return chart.unit or (metric if metric and kind == "Metrics" else kind.lower())


def _round_up(rough: float) -> float:
    """Returns the next step between labels that is easy to read, such as 0.25 or 500."""
    size = 10.0 ** math.floor(math.log10(rough))
    return size * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * 0.999)


def _ticks(end: float, whole: bool) -> list[float]:
    """Returns the labels of a horizontal axis from 0 to `end`."""
    step = _round_up(max(end, 1e-6) / 5)
    if whole:  # no label between two steps
        step = max(1.0, math.ceil(step))
    return [round(place * step, 6) for place in range(int(end / step + 1e-9) + 1)]


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 180:
        return "s", 1.0
    return ("min", 60.0) if seconds < 10_800 else ("h", 3600.0)


def breaks_of(record: RunRecord) -> list[Break]:
    """Returns the places of resumes and faults."""
    kinds = {"resume": "soft", "fault": "bad", "stop": "soft"}
    return sorted({(event.step, event.seconds, kinds[event.kind]) for event in record.events if event.kind in kinds})


# The lanes of the time line below that of training, with the kinds of events in each
_LANES = {
    "evaluations": ("evaluation",),
    "checkpoints": ("checkpoint",),
    "faults": ("fault", "stop", "restart", "warning", "slow"),
}


def draw_time_line(record: RunRecord) -> str:
    """Returns the events over time, one lane for each kind; "" for a record without times."""
    if not record.sessions or not record.seconds:
        return ""
    unit, divisor = _time_unit(record.seconds)
    lanes = [lane for lane, kinds in _LANES.items() if any(event.kind in kinds for event in record.events)]
    top = len(lanes) + 1
    drawn = pygal.XY(
        **_settings(_WIDE, 60 + 24 * top),
        range=(0.5, top + 0.5),
        xrange=(0, record.seconds / divisor),
        x_labels=_ticks(record.seconds / divisor, whole=False),
        x_title=f"training time, {unit}",
        x_value_formatter=number,
        y_labels=[{"label": lane, "value": top - place} for place, lane in enumerate(("training", *lanes))],
    )
    for session in record.sessions:
        begin, end = session.offset / divisor, (session.offset + session.seconds) / divisor
        points = [
            {"value": (begin, top), "label": f"training from step {number(session.first_step)}"},
            {"value": (end, top), "label": "training to here"},
        ]
        drawn.add("session color-0", points, dots_size=4)
    for place, lane in enumerate(lanes, start=1):
        events = [event for event in record.events if event.kind in _LANES[lane]]
        points = [
            {
                "value": (event.seconds / divisor, top - place),
                "label": as_line(f"step {number(event.step)} {event.kind} {event.text}", _LONGEST),
            }
            for event in events[-_POINTS // 4 :]
        ]
        drawn.add("faults" if lane == "faults" else f"color-{place}", points, stroke=False, dots_size=4)
    return _svg(drawn, "Time line")


def draw_padding(padded: list[dict[str, int]]) -> Markup:
    """Returns the tokens of an epoch by padded length, real ones and padding."""
    labels = [number(entry["length"]) for entry in padded]
    drawn = pygal.StackedBar(
        **_settings(*_SIZE), value_formatter=number, x_labels=labels, x_title="padded length", y_title="tokens"
    )
    real = [entry["real"] for entry in padded]
    rest = [entry["tokens"] - entry["real"] for entry in padded]
    for kind, name, values in (("color-0", "real", real), ("padding", "padding", rest)):
        drawn.add(kind, [{"value": value, "label": f"{number(value)} {name} tokens"} for value in values])
    return _svg(drawn, "Tokens of an epoch")


def _settings(width: int, height: int) -> dict[str, Any]:
    return {
        "js": [],  # pygal's own scripts and styles, one of them from the network, stay out
        "css": [],
        "style": Style(
            label_font_size=_FONT, major_label_font_size=_FONT, title_font_size=_FONT, font_family="system-ui"
        ),
        "disable_xml_declaration": True,
        "width": width,
        "height": height,
        "margin": 4,
        "margin_right": 14,
        "show_legend": False,
        "show_x_guides": False,
        "spacing": 6,
        "min_scale": 3,
        "max_scale": 6,
        "truncate_label": -1,
    }


def _svg(drawn: Any, title: str) -> Markup:
    """Returns the chart as an SVG element, whose series have their titles as classes."""
    classes = [settings["title"] for _, settings in drawn.raw_series]
    drawn.add_xml_filter(lambda root: _slim(root, title, classes))
    return Markup(drawn.render(is_unicode=True))


_FRACTION = re.compile(r"-?\d+\.\d+")
_POSITIONS = ("d", "cx", "cy", "x", "y", "width", "height", "transform")
_NOT_SHOWN = ("tooltip-overlay", "text-overlay")


def _slim(root: Any, title: str, classes: Sequence[str]) -> Any:
    """Leaves what page.css and page.js use: shapes with the classes of their series, and a text for each point."""
    for parent in [element for element in root.iter() if element.tag in ("svg", "g")]:
        labels = [child.text for child in parent if child.get("class") == "label"]
        for child in list(parent):
            kind = child.get("class") or ""
            # pygal draws a second base line, at the edge, for an axis without a zero
            is_base = child.tag == "path" and "axis y" in (parent.get("class") or "")
            if is_base or child.tag not in ("svg", "g", "path", "rect", "circle", "text") or kind.endswith(_NOT_SHOWN):
                parent.remove(child)
            elif labels and child.tag in ("circle", "rect"):
                words = child.makeelement("title", {})
                words.text = labels[0]
                child.append(words)
    for element in root.iter():
        if element.get("class") == "title":  # pygal leaves no space beside labels, and much below them
            element.set("y", str(float(element.get("y")) - 5))
        for name in _POSITIONS:
            if (value := element.get(name)) is not None:
                element.set(name, _FRACTION.sub(lambda found: f"{float(found[0]):.1f}", value))
        found = re.match(r"series serie-(\d+) ", element.get("class") or "")
        if found is not None:
            element.set("class", f"series {classes[int(found[1])]}")
    del root.attrib["id"]
    root.attrib.update({"role": "img", "aria-label": as_line(title, _LONGEST)})
    return root
