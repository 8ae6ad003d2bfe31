"""The tables of docs/arguments.md: the fields of `TrainingArguments`, in Markdown."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

from markdown_tables import code, table

from mps_trainer import TrainingArguments
from mps_trainer.arguments.deprecated import DeprecatedArguments
from mps_trainer.arguments.fields import declarations, default_of

_PREFIX = "Deprecated: "


@dataclass(frozen=True)
class Row:
    """One field: its name, its type and default as one writes them in Python, its help, and whether it works."""

    name: str
    type: str
    default: str
    help: str
    status: str


def groups() -> dict[str, list[Row]]:
    """The fields that are not deprecated, by the subject of the class that declares them, in its order."""
    bases = [base for base in reversed(TrainingArguments.__bases__) if dataclasses.is_dataclass(base)]
    rows = {base: [_row(base, field) for field in dataclasses.fields(base)] for base in bases}
    return {
        (base.__doc__ or "").rstrip("."): [row for row in each if not row.help.startswith(_PREFIX)]
        for base, each in rows.items()
    }


def deprecated() -> list[Row]:
    """The deprecated fields; `help` is what to use instead."""
    rows = [_row(DeprecatedArguments, field) for field in dataclasses.fields(DeprecatedArguments)]
    return [
        dataclasses.replace(row, help=row.help.removeprefix(_PREFIX)) for row in rows if row.help.startswith(_PREFIX)
    ]


def _row(owner: type, field: dataclasses.Field[Any]) -> Row:
    # The annotation as its author wrote it: resolved, as HfArgumentParser leaves field.type, an enum shows its module.
    annotations = [inspect.get_annotations(each) for each in owner.__mro__]
    written = next(each[field.name] for each in annotations if field.name in each)
    return Row(field.name, str(written), repr(default_of(field)), field.metadata["help"], _status(field.name))


def _status(name: str) -> str:
    """Says whether the argument works, or which of its values are refused and why, in the check's words."""
    refused = declarations(TrainingArguments)[name].refused
    if not refused:
        return "works"
    reasons = " ".join(
        f"{', '.join(refusal.values) or 'any'}: {refusal.why}. {refusal.instead}." for refusal in refused
    )
    return f"works, but {reasons}" if any(refusal.values for refusal in refused) else f"refused, {reasons}"


def current_tables() -> str:
    """Returns a table for each subject: name, type and default beside what the field does."""
    found = []
    for subject, rows in groups().items():
        # Type and default are no code, which a narrow column could not wrap.
        cells = [(f"{code(row.name)}<br>{row.type}: {row.default}", _said(row)) for row in rows]
        found.append(f"## {subject}\n\n" + table(("Argument", "What it does, and what of it is refused"), cells))
    return "\n\n".join(found)


def deprecated_table() -> str:
    return table(("Argument", "What to do"), [(code(row.name), row.help) for row in deprecated()])


def _said(row: Row) -> str:
    """Describes the argument and, unless all of it works, what is refused."""
    if row.status == "works":
        return row.help
    return f"{row.help}<br>*{row.status[0].upper() + row.status[1:]}*"
