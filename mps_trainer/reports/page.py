"""Makes the page of one run: outcome and headline first, then the curves, then the details."""

from __future__ import annotations

from . import figures, results, summary
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
    titled_card,
)
from .record import NAME, RunRecord
from .summary import Table
from .words import date

STEPS = "The horizontal axis counts steps; for throughput, tokens and memory it is the time of training."


def page(record: RunRecord, reload_after: int = 0) -> str:
    """Returns the page as text.

    Args:
        reload_after: seconds after which an open page loads itself again; 0 for a run that has ended.
    """
    body = (
        _head(record, reload_after)
        + _evaluation(record)
        + _curves(record)
        + _classification(record)
        + _run(record)
        + _time_line(record)
        + _shapes(record)
        + _fallbacks(record)
        + _device(record)
        + _arguments(record)
        + _environment(record)
        + _foot(record)
    )
    return document(f"{record.name}: training run", body, reload_after)


def _head(record: RunRecord, reload_after: int) -> str:
    word, tone, sentence = summary.outcome(record)
    word = "running" if reload_after else word
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
    return _section("Evaluation", _table(results.evaluation_table(record)))


def _classification(record: RunRecord) -> str:
    text = results.classification_text(record)
    if not text:
        return ""
    confusion, shares = results.confusion_table(record)
    mistakes = results.mistake_table(record)
    parts = [heading("Classification"), paragraph(text)]
    if confusion.rows:
        parts.append(
            titled_card("Confusion matrix", "labels in rows, predictions in columns", table(confusion, "", shares))
        )
    if mistakes.rows:
        parts.append(titled_card("Mistakes", "the most confident ones first", table(mistakes)))
    return "".join(parts)


def _curves(record: RunRecord) -> str:
    found = charts(record)
    if not found:
        return ""
    breaks, last, cards = figures.breaks_of(record), figures.last_step(found), []
    for chart in found:
        keys = [(curve.name, figures.color(place)) for place, curve in enumerate(chart.curves)]
        figure = figures.line_figure(chart, last, breaks)
        cards.append(chart_card(figure, chart.title, _aside(chart), keys if len(keys) > 1 else ()))
    note = " Dotted lines: where the run stopped, failed or was resumed." if breaks else ""
    return heading("Curves") + grid(cards) + paragraph(STEPS + note, "soft")


def _aside(chart: Chart) -> str:
    """Returns unit and axis of a chart, and the name of a single curve."""
    alone = [chart.curves[0].name] if len(chart.curves) == 1 and chart.key in ("loss", "metrics", "memory") else []
    return ", ".join([*alone, *([chart.unit] if chart.unit else []), *(["logarithmic"] if chart.log else [])])


def _run(record: RunRecord) -> str:
    note = summary.not_shown(record)
    return _section("Run", facts(summary.origin_rows(record)) + (paragraph(note, "soft") if note else ""))


def _time_line(record: RunRecord) -> str:
    figure = figures.time_line(record)
    if figure is None:
        return ""
    note = summary.counts_of_events(record)
    if len(record.sessions) > 1:
        note += " The clock stands still between two sessions of a run."
    return (
        heading("Time line")
        + chart_card(figure, "What happened when", note=note)
        + card(_table(summary.event_table(record), "narrow"))
    )


def _shapes(record: RunRecord) -> str:
    rows = summary.shape_rows(record)
    if not rows:
        return ""
    parts = [card(facts(rows))]
    padded = summary.padding_table(record)
    if padded.rows:
        keys = [("real tokens", "var(--c0)"), ("padding", "var(--faint)")]
        figure = figures.padding_figure(record.data["padded"])
        parts.append(grid([chart_card(figure, "Tokens of an epoch", "by padded length", keys), card(table(padded))]))
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
