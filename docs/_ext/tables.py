"""A table of docutils from rows of text."""

from __future__ import annotations

from collections.abc import Sequence

from docutils import nodes

Cell = str | Sequence[nodes.Node]


def table(rows: Sequence[Sequence[Cell]], head: Sequence[str], widths: Sequence[int], code: int) -> nodes.table:
    """`rows` under `head`; texts in the first `code` columns are set as code. A cell may be paragraphs, too."""
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=width) for width in widths]
    header, body = nodes.thead(), nodes.tbody()
    header += _row(head, 0)
    for row in rows:
        body += _row(row, code)
    group += [header, body]
    found = nodes.table()
    found += group
    return found


def _row(cells: Sequence[Cell], code: int) -> nodes.row:
    row = nodes.row()
    for column, cell in enumerate(cells):
        entry = nodes.entry()
        entry += _paragraph(cell, column < code) if isinstance(cell, str) else list(cell)
        row += entry
    return row


def _paragraph(text: str, is_code: bool) -> nodes.paragraph:
    paragraph = nodes.paragraph()
    paragraph += nodes.literal(text=text) if is_code else nodes.Text(text)
    return paragraph
