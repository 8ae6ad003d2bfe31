"""Renders the page of a run and the page that compares runs from the templates beside this module."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jinja2
from markupsafe import Markup, escape

from ..utils.documentation import page as page_of_documentation
from ..version import __version__
from . import charts, curves, formatting, summary
from .curves import Chart
from .record import GENERATOR, NAME, RunRecord

Keys = list[tuple[str, str]]  # names of curves, and classes of page.css for their colors

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def _breakable(name: str) -> Markup:
    """Returns a name that a browser may break after an underscore."""
    return escape(name).replace("_", Markup("_<wbr>"))


_TEMPLATES.filters |= {
    "breakable": _breakable,
    "number": formatting.number,
    "duration": formatting.duration,
    "date": formatting.date,
    "percentage": formatting.percentage,
    "argument": summary.argument,
    "metric_name": formatting.metric_name,
}
_TEMPLATES.globals |= {
    "generator": f"{GENERATOR} {__version__}",
    "documentation": page_of_documentation("report"),
    "record_name": NAME,
    "summary": summary,
    "color_of": charts.color_of,
    "draw_padding": charts.draw_padding,
    "draw_time_line": charts.draw_time_line,
}


def run_page(record: RunRecord, reload_after: int = 0) -> str:
    """Returns the page of a run as text.

    Args:
        reload_after: seconds after which an open page loads itself again; 0 for a run that has ended.
    """
    breaks = charts.breaks_of(record)
    drawn = _drawn(curves.charts(record), breaks)
    template = _TEMPLATES.get_template("run.html")
    return template.render(record=record, reload_after=reload_after, charts=drawn, breaks=breaks)


def comparison_page(records: Sequence[RunRecord]) -> str:
    """Returns the page that compares runs as text: final metrics, curves in the same charts, differing arguments."""
    drawn = _drawn(curves.compared_charts(records))
    return _TEMPLATES.get_template("comparison.html").render(records=records, charts=drawn)


def _drawn(found: list[Chart], breaks: Sequence[charts.Break] = ()) -> list[tuple[Chart, Markup, Keys]]:
    """Returns the charts, their figures with one axis of steps, and the names and colors of several curves."""
    last_step = max((curve.x[-1] for chart in found if not chart.over_time for curve in chart.curves), default=0)
    drawn = []
    for chart in found:
        keys = [(curve.name, charts.color_of(place)) for place, curve in enumerate(chart.curves)]
        if chart.best is not None:
            keys.append((f"{chart.best[1]}: step {formatting.number(chart.best[0])}", "break best"))
        drawn.append((chart, charts.draw_curves(chart, last_step, breaks), keys if len(keys) > 1 else []))
    return drawn


def tell_apart(records: Sequence[RunRecord], folders: Sequence[str]) -> None:
    """Renames runs of one name after their folders, from the folder on that has all of them."""
    names = [record.name for record in records]
    paths = [os.path.abspath(folder) for folder in folders]
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    for record, path in zip(records, paths, strict=True):
        if names.count(record.name) > 1:
            record.name = os.path.relpath(path, root)
