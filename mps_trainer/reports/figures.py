"""Makes charts into figures of plotly: dictionaries that plotly.js draws in the browser.

A colour is written as the variable of the style sheet that has it, "var(--c0)"; the page puts its value in, anew when
the reader changes between light and dark.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from .curves import Chart, Curve
from .record import Event, RunRecord, Session

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
COLORS = 8  # --c0 to --c7
_DASHES = ("solid", "dash", "dot", "dashdot")  # of runs beyond the colours
_MARKERS = 40  # points up to which each is marked
_APART = 0.1  # of the height of a chart, between two labels
_LEFT, _TOP, _BOTTOM = 52, 10, 36  # pixels
_LETTER = 6.6  # pixels of the labels' font, about


def color(number: int) -> str:
    return f"var(--c{number % COLORS})"


def text(words: str) -> str:
    """Escapes words from a file, so that plotly takes none of them for markup."""
    return html.escape(words, quote=False)


def line_figure(
    chart: Chart, last_step: float, breaks: Sequence[tuple[float, str]] = (), labels: bool = True
) -> dict[str, Any]:
    """Returns the figure of a chart over the steps.

    Args:
        last_step: the end of the axis, the same for all charts of a page.
        breaks: steps of resumes and faults, each with the colour of its line.
        labels: writes the name of each curve at its end.
    """
    low, high = _range(chart)
    named = labels and len(chart.curves) > 1
    right = 12 + round(_LETTER * max(len(curve.name) for curve in chart.curves)) if named else 14
    layout = {
        **_layout(right=min(right, 130)),
        "xaxis": _axis(title={"text": "step", "standoff": 6}, **_step_ticks(last_step)),
        "yaxis": _axis(range=[low, high], **_value_ticks(chart)),
        "shapes": [_vertical(step, shade) for step, shade in breaks],
        "hovermode": "x unified" if len(chart.curves) > 1 else "closest",
    }
    if named:
        layout["annotations"] = _end_labels(chart, low, high)
    return {"data": [_trace(curve, place, chart) for place, curve in enumerate(chart.curves)], "layout": layout}


def _trace(curve: Curve, place: int, chart: Chart) -> dict[str, Any]:
    number = place if curve.color is None else curve.color
    few = len(curve.steps) <= _MARKERS
    point = "%{y:.5~g}" + (f" {chart.unit}" if chart.unit else "")
    return {
        "type": "scatter",
        "mode": "lines+markers" if few or curve.marked else "lines",
        "name": text(curve.name),
        "x": curve.steps,
        "y": [float(f"{value:.6g}") for value in curve.values],
        "line": {"color": color(number), "width": 2, "dash": _DASHES[number // COLORS % len(_DASHES)]},
        "marker": {"size": 6 if curve.marked else 4, "color": color(number)},
        "hovertemplate": point if len(chart.curves) > 1 else f"step %{{x}}<br>{point}<extra></extra>",
    }


def _range(chart: Chart) -> tuple[float, float]:
    """Returns the range of the vertical axis, with some room; exponents of 10 where it is logarithmic."""
    values = [value for curve in chart.curves for value in curve.values]
    low, high = min(values), max(values)
    if chart.log:
        low, high = math.log10(low), math.log10(high)
    if chart.from_zero:
        low = min(low, 0.0)
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return (low if chart.from_zero and low == 0 else low - room), high + room


def _end_labels(chart: Chart, low: float, high: float) -> list[dict[str, Any]]:
    """Returns the name of each curve to the right of its end, none on top of another."""
    places = []
    for number, curve in enumerate(chart.curves):
        value = math.log10(curve.last) if chart.log else curve.last
        places.append([(value - low) / (high - low), number])
    places.sort()
    for below, place in itertools.pairwise(places):
        place[0] = max(place[0], below[0] + _APART)
    over = max(places[-1][0] - 1.0, 0.0)
    for place in places:
        place[0] -= over  # those that were pushed past the top push the others down
    return [
        {
            "xref": "paper", "yref": "paper", "x": 1, "y": height, "xanchor": "left", "yanchor": "middle", "xshift": 6,
            "text": text(chart.curves[int(number)].name), "showarrow": False,
            "font": {"color": color(int(number)), "size": 12},
        }
        for height, number in places
    ]  # fmt: skip


def _layout(right: int, left: int = _LEFT, top: int = _TOP) -> dict[str, Any]:
    return {
        "autosize": True,
        "margin": {"l": left, "r": right, "t": top, "b": _BOTTOM},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 12, "color": "var(--soft)"},
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--line)", "font": {"color": "var(--text)"}},
        "showlegend": False,
    }


def _axis(**more: Any) -> dict[str, Any]:
    return {
        "gridcolor": "var(--line)",
        "linecolor": "var(--line)",
        "zeroline": False,
        "ticks": "",
        "nticks": 6,
        "automargin": False,
        "fixedrange": False,
        **more,
    }


def _step_ticks(last: float) -> dict[str, Any]:
    room = 0.02 * last or 0.5
    ticks: dict[str, Any] = {"range": [-room, last + room], "tickformat": "~s" if last >= 10_000 else ",d"}
    return ticks | {"dtick": 1} if last <= 5 else ticks  # no tick between two steps


def last_step(charts: Iterable[Chart]) -> float:
    return max((curve.steps[-1] for chart in charts for curve in chart.curves), default=0)


def _value_ticks(chart: Chart) -> dict[str, Any]:
    if chart.log:
        return {"type": "log", "dtick": 1, "tickformat": "~g"}
    largest = max(abs(value) for curve in chart.curves for value in curve.values)
    if 0 < largest < 1e-2:
        return {"exponentformat": "e", "minexponent": 2}
    return {"tickformat": "~s" if largest >= 10_000 else "~g"}


def _vertical(step: float, shade: str) -> dict[str, Any]:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": step, "x1": step, "y0": 0, "y1": 1,
        "line": {"color": shade, "width": 1.5, "dash": "dot"}, "layer": "below",
    }  # fmt: skip


def breaks_of(record: RunRecord) -> list[tuple[float, str]]:
    """Returns the steps of resumes and faults, each with its colour."""
    shades = {"resume": "var(--soft)", "fault": "var(--bad)", "stop": "var(--soft)"}
    found = {(event.step, shades[event.kind]) for event in record.events if event.kind in shades}
    return sorted(found)


# The time line

_LANES = ("training", "evaluations", "checkpoints", "faults")


def time_line(record: RunRecord) -> dict[str, Any] | None:
    """Returns the events over time, one lane for each kind; None for a record without times."""
    if not record.sessions or not record.seconds:
        return None
    unit, divisor = _unit(record.seconds)
    lanes = [lane for lane in _LANES if lane == "training" or any(_lane(event) == lane for event in record.events)]
    traces = [_session_trace(session, divisor) for session in record.sessions]
    for lane in lanes[1:]:
        traces.append(_event_trace([e for e in record.events if _lane(e) == lane], lane, divisor))
    end = record.seconds / divisor
    layout = {
        **_layout(right=14, left=88),
        "xaxis": _axis(title={"text": unit, "standoff": 6}, range=[-0.02 * end, 1.02 * end], tickformat="~g"),
        "yaxis": _axis(
            type="category", categoryorder="array", categoryarray=list(reversed(lanes)), fixedrange=True,
            showgrid=False, range=[-0.6, len(lanes) - 0.4], tickmode="array", tickvals=lanes,
        ),
        "hovermode": "closest",
        "barmode": "overlay",
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _unit(seconds: float) -> tuple[str, float]:
    if seconds < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 10_800 else ("hours", 3600.0)


def _lane(event: Event) -> str | None:
    kinds = {"evaluation": "evaluations", "checkpoint": "checkpoints"}
    return "faults" if event.kind in ("fault", "stop", "warning") else kinds.get(event.kind)


def _session_trace(session: Session, divisor: float) -> dict[str, Any]:
    ends = [session.offset / divisor, (session.offset + session.seconds) / divisor]
    steps = [f"from step {session.first_step:,}", "to here"]
    return {
        "type": "scatter", "mode": "lines+markers", "x": ends, "y": ["training", "training"], "text": steps,
        "line": {"color": "var(--c0)", "width": 8}, "hovertemplate": "training %{text}<extra></extra>",
        "marker": {"symbol": "line-ns", "size": 14, "line": {"width": 2, "color": "var(--c0)"}},
    }  # fmt: skip


_SHADES = {"evaluations": "var(--c1)", "checkpoints": "var(--c2)", "faults": "var(--bad)"}
_SYMBOLS = {"evaluations": "circle", "checkpoints": "diamond", "faults": "x"}


def _event_trace(events: list[Event], lane: str, divisor: float) -> dict[str, Any]:
    words = [text(" ".join(f"step {event.step:,} {event.kind} {_short(event.text)}".split())) for event in events]
    return {
        "type": "scatter", "mode": "markers", "x": [event.seconds / divisor for event in events],
        "y": [lane] * len(events), "text": words, "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": _SYMBOLS[lane], "size": 9, "color": _SHADES[lane]},
    }  # fmt: skip


def _short(words: str) -> str:
    return words if len(words) <= 60 else f"{words[:59]}…"


# Padding


def padding_figure(padded: list[dict[str, int]]) -> dict[str, Any] | None:
    """Returns the tokens of an epoch by padded length, real ones and padding."""
    if not padded:
        return None
    lengths = [str(entry["length"]) for entry in padded]
    real = [entry["real"] for entry in padded]
    rest = [entry["tokens"] - entry["real"] for entry in padded]
    layout = {
        **_layout(right=14, top=34),
        "xaxis": _axis(title={"text": "padded to, tokens", "standoff": 6}, type="category", showgrid=False),
        "yaxis": _axis(tickformat="~s"),
        "barmode": "stack",
        "bargap": 0.35,
        "showlegend": True,
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"color": "var(--text)"},
        },
    }
    bars = (("real tokens", real, "var(--c0)"), ("padding", rest, "var(--faint)"))
    return {
        "data": [
            {"type": "bar", "name": name, "x": lengths, "y": values, "marker": {"color": shade},
             "hovertemplate": f"%{{y:,}} {name}<extra></extra>"}
            for name, values, shade in bars
        ],
        "layout": layout,
    }  # fmt: skip
