"""The directive `arguments-table`: the fields of `TrainingArguments` as they are when the pages are built.

`arguments-table` with the word `current` gives one table for each group of fields, with `deprecated` one table of the
names that are going away and what to write instead. Only the directive needs Sphinx; `groups()` and `deprecated()`
are plain functions.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from tables import table

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
    rows = {base: [_row(field) for field in dataclasses.fields(base)] for base in bases}
    return {
        (base.__doc__ or "").rstrip("."): [row for row in each if not row.help.startswith(_PREFIX)]
        for base, each in rows.items()
    }


def deprecated() -> list[Row]:
    """The deprecated fields; `help` is what to use instead."""
    rows = [_row(field) for field in dataclasses.fields(DeprecatedArguments)]
    return [
        dataclasses.replace(row, help=row.help.removeprefix(_PREFIX)) for row in rows if row.help.startswith(_PREFIX)
    ]


def _row(field: dataclasses.Field[Any]) -> Row:
    # The annotation as its author wrote it: resolved, an enum would show where it lives and not what it is.
    return Row(field.name, str(field.type), repr(default_of(field)), field.metadata["help"], _status(field.name))


def _status(name: str) -> str:
    """Says whether the argument works, or which of its values are refused and why, in the check's words."""
    refused = declarations(TrainingArguments)[name].refused
    if not refused:
        return "works"
    reasons = " ".join(
        f"{', '.join(refusal.values) or 'any'}: {refusal.why}. {refusal.instead}." for refusal in refused
    )
    return f"works, but {reasons}" if any(refusal.values for refusal in refused) else f"refused, {reasons}"


class ArgumentsTable(Directive):
    """`{arguments-table} current` or `{arguments-table} deprecated`."""

    required_arguments = 1
    has_content = False
    sets: ClassVar[tuple[str, ...]] = ("current", "deprecated")

    def run(self) -> list[nodes.Node]:
        which = self.arguments[0]
        if which not in self.sets:
            raise self.error(f"arguments-table takes one of {', '.join(self.sets)}, not {which!r}.")
        if which == "deprecated":
            return [
                table([(row.name, row.help) for row in deprecated()], ("Argument", "What to do"), (30, 70), code=1)
            ]
        out: list[nodes.Node] = []
        for subject, rows in groups().items():
            out.append(nodes.rubric(text=subject))
            cells = [(_called(row), _said(row)) for row in rows]
            out.append(table(cells, ("Argument", "What it does, and what of it is refused"), (35, 65), code=1))
        return out


def _called(row: Row) -> list[nodes.Node]:
    """The name, and below it type and default: in columns of their own the table is wider than the page."""
    name, kind = nodes.paragraph(), nodes.paragraph()
    name += nodes.literal(text=row.name)
    kind += nodes.Text(f"{row.type}: {row.default}")
    return [name, kind]


def _said(row: Row) -> list[nodes.Node]:
    """Describes the argument and, unless all of it works, what is refused."""
    paragraphs = [nodes.paragraph(text=row.help)]
    if row.status != "works":
        refused = nodes.paragraph()
        refused += nodes.emphasis(text=row.status[0].upper() + row.status[1:])
        paragraphs.append(refused)
    return paragraphs


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("arguments-table", ArgumentsTable)
    # Not a file that Sphinx watches: a changed field has to rebuild the page even so.
    app.connect("env-get-outdated", lambda *_: ["arguments"])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
