"""Makes the page of one run: outcome and headline first, then the curves, then the details."""

from __future__ import annotations

from typing import Any

from . import figures, summary
from .curves import Chart, charts
from .markup import (
    badge,
    card,
    chart_card,
    document,
    escape,
    facts,
    grid,
    heading,
    paragraph,
    table,
    tile_row,
    without_scripts,
)
from .record import NAME, RunRecord
from .summary import Table
from .words import date


def page(record: RunRecord) -> str:
    """Returns the page as text."""
    drawn: dict[str, Any] = {}
    body = (
        _head(record)
        + _evaluation(record)
        + _curves(record, drawn)
        + _section("Run", facts(summary.origin_rows(record)))
        + _time_line(record, drawn)
        + _shapes(record, drawn)
        + _fallbacks(record)
        + _device(record)
        + _arguments(record)
        + _environment(record)
        + _foot(record)
    )
    return document(f"{record.name}: training run", body, drawn)


def _head(record: RunRecord) -> str:
    word, tone, sentence = summary.outcome(record)
    return (
        f"<header>\n<h1>{escape(record.name)}</h1>\n<p>{badge(word, tone)}{escape(sentence)}</p>\n</header>\n"
        f"{tile_row(summary.tiles(record))}"
    )


def _section(title: str, inside: str) -> str:
    """Returns a heading and a card; nothing without content."""
    return heading(title) + card(inside) if inside else ""


def _table(shown: Table, kind: str = "") -> str:
    return table(shown, kind) if shown.rows else ""


def _evaluation(record: RunRecord) -> str:
    return _section("Evaluation", _table(summary.evaluation_table(record)))


def _curves(record: RunRecord, drawn: dict[str, Any]) -> str:
    found = charts(record)
    if not found:
        return ""
    breaks, last, cards = figures.breaks_of(record), figures.last_step(found), []
    for chart in found:
        key = f"chart-{chart.key}"
        drawn[key] = figures.line_figure(chart, last, breaks)
        cards.append(chart_card(key, chart.title, _aside(chart)))
    return heading("Curves") + without_scripts() + grid(cards) + paragraph(_legend(breaks), "soft")


def _aside(chart: Chart) -> str:
    """Returns unit and axis of a chart, and the name of a single curve, which has none at its end."""
    alone = [chart.curves[0].name] if len(chart.curves) == 1 and chart.key in ("loss", "metrics", "memory") else []
    return ", ".join([*alone, *([chart.unit] if chart.unit else []), *(["logarithmic"] if chart.log else [])])


def _legend(breaks: list[tuple[float, str]]) -> str:
    lines = "Dotted lines: where the run stopped, failed or was resumed. " if breaks else ""
    return f"{lines}Drag across a chart to look closer; a double click goes back."


def _time_line(record: RunRecord, drawn: dict[str, Any]) -> str:
    figure = figures.time_line(record)
    if figure is None:
        return ""
    drawn["time-line"] = figure
    note = summary.counts_of_events(record)
    if len(record.sessions) > 1:
        note += " The clock stands still between two sessions of a run."
    return (
        heading("Time line")
        + chart_card("time-line", "What happened when", low=True, note=note)
        + card(_table(summary.event_table(record), "narrow"))
    )


def _shapes(record: RunRecord, drawn: dict[str, Any]) -> str:
    rows = summary.shape_rows(record)
    if not rows:
        return ""
    parts = [card(facts(rows))]
    padded = summary.padding_table(record)
    if padded.rows:
        drawn["padding"] = figures.padding_figure(record.data["padded"])
        parts.append(grid([chart_card("padding", "Tokens of an epoch", "by padded length"), card(table(padded))]))
    return heading("Shapes and padding") + "".join(parts)


def _fallbacks(record: RunRecord) -> str:
    sentence, operators = summary.fallback_table(record)
    return _section("Operators that fell back to the CPU", paragraph(sentence) + _table(operators))


def _device(record: RunRecord) -> str:
    return _section("Device", facts(summary.device_rows(record)))


def _arguments(record: RunRecord) -> str:
    return _section("Arguments that differ from their defaults", _table(summary.argument_table(record)))


def _environment(record: RunRecord) -> str:
    return _section("Environment", facts(summary.environment_rows(record)))


def _foot(record: RunRecord) -> str:
    begun = f" Training began {date(record.sessions[0].begun)}." if record.sessions else ""
    source = record.source if record.source != NAME else f"{NAME} beside this file"
    words = f"Made from {source}; `mps-trainer report` makes it again, and compares runs.{begun}"
    return f"<footer>{escape(words)}</footer>\n"
