"""Chooses what a page shows of the evaluations of a run; no markup."""

from __future__ import annotations

from typing import Any

from . import curves
from .record import RunRecord, is_finite
from .summary import Table
from .words import metric_name, number


def evaluation_table(record: RunRecord) -> Table:
    """Returns the metrics that were logged at one step only, which make no curve."""
    table = Table(("metric", "value", "step"), numbers=(1, 2))
    for name in curves.metric_names(record):
        logged = {entry["step"]: entry[name] for entry in record.history if name in entry}
        if len(logged) == 1:
            ((step, value),) = logged.items()
            table.rows.append((metric_name(name), number(value), number(step)))
    return table


def confusion_table(record: RunRecord) -> tuple[Table, list[list[float]]]:
    """Returns the confusion matrix, and the share of its row that each cell has."""
    classes = [str(name) for name in record.classification.get("classes", [])]
    rows = record.classification.get("confusion", [])
    table = Table(("label", *classes), numbers=tuple(range(1, len(classes) + 1)))
    if len(rows) != len(classes) or not all(_is_row(row, len(classes)) for row in rows):
        return table, []
    table.rows = [(name, *map(number, row)) for name, row in zip(classes, rows, strict=True)]
    return table, [[0.0, *(value / (sum(row) or 1) for value in row)] for row in rows]


def _is_row(row: Any, length: int) -> bool:
    return isinstance(row, list) and len(row) == length and all(is_finite(value) and value >= 0 for value in row)


def mistake_table(record: RunRecord) -> Table:
    """Returns the most confident mistakes, with their texts or else their rows where these are known."""
    mistakes = record.classification.get("mistakes", [])
    known = [name for name in ("text", "row") if any(mistake.get(name) not in (None, "") for mistake in mistakes)][:1]
    table = Table((*known, "label", "predicted", "probability"), numbers=(len(known) + 2,))
    for mistake in mistakes:
        first = (number(mistake.get(name, "")) for name in known)
        names = str(mistake["label"]), str(mistake["predicted"])
        table.rows.append((*first, *names, number(mistake["confidence"])))
    return table


def classification_text(record: RunRecord) -> str:
    """Returns the number of mistakes in the last evaluation, in a sentence."""
    examples, wrong = (record.classification.get(name) for name in ("examples", "wrong"))
    if not examples or wrong is None:
        return ""
    return f"The last evaluation: {number(wrong)} of {number(examples)} examples were misclassified."
