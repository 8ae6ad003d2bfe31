"""A table of docutils from rows of text."""

from __future__ import annotations

from collections.abc import Sequence

from docutils import nodes


def table(rows: Sequence[Sequence[str]], head: Sequence[str], widths: Sequence[int], code: int) -> nodes.table:
    """`rows` under `head`; the first `code` columns are set as code, the others as text."""
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=width) for width in widths]
    header, body = nodes.thead(), nodes.tbody()
    header += _cells([nodes.Text(text) for text in head])
    for row in rows:
        body += _cells([*(nodes.literal(text=text) for text in row[:code]), *map(nodes.Text, row[code:])])
    group += [header, body]
    found = nodes.table()
    found += group
    return found


def _cells(content: Sequence[nodes.Node]) -> nodes.row:
    row = nodes.row()
    for node in content:
        paragraph, entry = nodes.paragraph(), nodes.entry()
        paragraph += node
        entry += paragraph
        row += entry
    return row
