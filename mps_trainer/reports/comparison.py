"""Makes the page that compares runs: final metrics, curves in the same charts, and differing arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from . import figures, summary
from .curves import Chart, Curve, charts
from .markup import card, chart_card, document, escape, grid, heading, key, paragraph, table
from .page import STEPS
from .record import RunRecord
from .summary import LOSSES, Table
from .words import duration, metric_name, number

NOT_KNOWN = "–"
# arguments that say where a run is, and not what it does
_OF_NO_MATTER = {"output_dir", "overwrite_output_dir", "resume_from_checkpoint", "logging_dir", "run_name"}

_OF_ONE_RUN = ("command line", "best checkpoint", "begun")


def comparison(records: Sequence[RunRecord]) -> str:
    """Returns the page as text."""
    body = (
        f"<header>\n<h1>{len(records)} runs</h1>\n{_keys(records)}</header>\n"
        + heading("Final metrics")
        + card(table(metric_table(records)))
        + _curves(records)
        + _differences(records)
        + "<footer>Made by <code>mps-trainer report</code> from the folders of the runs.</footer>\n"
    )
    return document(f"{len(records)} runs compared", body)


def told_apart(records: Sequence[RunRecord], folders: Sequence[str]) -> None:
    """Renames runs of one name after their folders, as far up as it takes to tell them apart."""
    names = [record.name for record in records]
    for record, folder in zip(records, folders, strict=True):
        if names.count(record.name) > 1:
            parts = os.path.abspath(folder).split(os.sep)
            others = [os.path.abspath(other).split(os.sep) for other in folders if other != folder]
            depth = next(
                (n for n in range(1, len(parts)) if all(parts[-n:] != other[-n:] for other in others)), len(parts)
            )
            record.name = os.sep.join(parts[-depth:])


def _keys(records: Sequence[RunRecord]) -> str:
    """Returns each run with its colour and outcome."""
    lines = []
    for position, record in enumerate(records):
        _, _, sentence = summary.outcome(record)
        lines.append(
            f"<p>{key(figures.color(position))}<strong>{escape(record.name)}</strong> {escape(sentence)}</p>\n"
        )
    return "".join(lines)


def metric_table(records: Sequence[RunRecord]) -> Table:
    """Returns a row for each run, a column for each metric that one of them has, then time and speed."""
    metrics = [summary.final_metrics(record) for record in records]
    names = list(dict.fromkeys(name for found in metrics for name in found))
    names.sort(key=lambda name: (name in LOSSES, name.endswith("_loss")))
    head = ("run", *map(metric_name, names), "steps", "time", "samples/s")
    shown = Table(head, numbers=tuple(range(1, len(head))))
    for record, found in zip(records, metrics, strict=True):
        values = (number(found[name]) if name in found else NOT_KNOWN for name in names)
        time = duration(record.seconds) if record.seconds else NOT_KNOWN
        shown.rows.append((record.name, *values, number(record.outcome.get("step") or 0), time, _speed(record)))
    return shown


def _speed(record: RunRecord) -> str:
    speed = summary.throughput(record)
    return NOT_KNOWN if speed is None else number(speed[0])


def _curves(records: Sequence[RunRecord]) -> str:
    """Returns a chart for each measurement, with a line for each run in the colour of its key."""
    together: dict[tuple[str, str], Chart] = {}
    for position, record in enumerate(records):
        for chart in charts(record):
            for curve in chart.curves:
                title = _title(chart, curve)
                shared = together.setdefault((chart.key, title), replace(chart, title=title, curves=[]))
                shared.log = shared.log and chart.log
                if not shared.curves or shared.curves[-1].color != position:
                    shared.curves.append(replace(curve, name=record.name, color=position))
    cards = []
    last = figures.last_step(together.values())
    order = {key: place for place, (key, _) in enumerate(together)}
    for _, chart in sorted(together.items(), key=lambda item: order[item[0][0]]):
        cards.append(chart_card(figures.line_figure(chart, last), chart.title, chart.unit))
    if not cards:
        return ""
    note = f"{STEPS} The runs have the colours that their names have above."
    return heading("Curves") + grid(cards) + paragraph(note, "soft")


def _title(chart: Chart, curve: Curve) -> str:
    if chart.key == "loss":
        return "Training loss" if curve.name == "training" else f"Loss, {curve.name}"
    if chart.key == "metrics":
        return curve.name[:1].upper() + curve.name[1:]
    return f"Memory, {curve.name}" if chart.key == "memory" else chart.title


def _differences(records: Sequence[RunRecord]) -> str:
    arguments, surroundings = argument_differences(records), surrounding_differences(records)
    unknown = [record.name for record in records if not record.arguments]
    note = paragraph(f"Not known of {', '.join(unknown)}.", "soft") if unknown else ""
    same = paragraph("All arguments that are known are the same.")
    parts = heading("Arguments that differ") + card((table(arguments) if arguments.rows else same) + note)
    if surroundings.rows:
        parts += heading("Device and environment that differ") + card(table(surroundings))
    return parts


def argument_differences(records: Sequence[RunRecord]) -> Table:
    """Returns the arguments that differ between runs whose arguments are known."""
    known = [record.arguments for record in records]
    names = sorted({name for arguments in known for name in arguments} - _OF_NO_MATTER)
    shown = Table(("argument", *(record.name for record in records)))
    for name in names:
        values = [summary.plain(arguments.get(name)) if arguments else "?" for arguments in known]
        if len(set(values) - {"?"}) > 1:
            shown.rows.append((name, *values))
    return shown


def surrounding_differences(records: Sequence[RunRecord]) -> Table:
    rows: dict[str, list[str]] = {}
    for position, record in enumerate(records):
        rows_of_one = [*summary.origin_rows(record), *summary.environment_rows(record)]
        known = {row[0]: row[1] for row in rows_of_one if row[0] not in _OF_ONE_RUN}
        if (device := summary.device_name(record)) != "":
            known = {"device": device, **known}
        for name, value in known.items():
            rows.setdefault(name, ["?"] * len(records))[position] = value
    shown = Table(("", *(record.name for record in records)))
    shown.rows = [(name, *values) for name, values in rows.items() if len(set(values) - {"?"}) > 1]
    return shown
