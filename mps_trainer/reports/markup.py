"""Writes the pieces of a page. All text of a file goes through `escape`, and no other module writes markup."""

from __future__ import annotations

import html
import importlib.resources
import itertools
from collections.abc import Sequence

from ..version import __version__
from .record import GENERATOR
from .summary import Row, Table, Tile

# Whatever a page were to ask for, a browser does not fetch it.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def escape(words: str) -> str:
    return html.escape(words, quote=True)


def document(title: str, body: str, reload_after: int = 0) -> str:
    """Returns a whole page with style and script, which an open browser loads again after some seconds."""
    again = f' data-reload="{reload_after}"' if reload_after else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="{GENERATOR} {__version__}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_file('page.css')}</style>\n</head>\n<body{again}>\n<main>\n"
        f"{body}</main>\n<script>\n{_file('page.js')}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def heading(words: str) -> str:
    return f"<h2>{escape(words)}</h2>\n"


def paragraph(words: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{escape(words)}</p>\n" if words else ""


def badge(words: str, tone: str) -> str:
    return f'<span class="badge {tone}">{escape(words)}</span>'


def tile_row(tiles: Sequence[Tile]) -> str:
    entries = (
        f'<div class="tile"><dt>{escape(tile.label)}</dt><dd>{escape(tile.value)}'
        f"<small>{escape(tile.more)}</small></dd></div>\n"
        for tile in tiles
    )
    return f'<dl class="tiles">\n{"".join(entries)}</dl>\n' if tiles else ""


def chart_card(figure: str, title: str, unit: str = "", keys: Sequence[tuple[str, str]] = (), note: str = "") -> str:
    """Returns a chart, which is SVG, below its title and the names of its curves with their colours."""
    names = "".join(f'<span class="name">{key(color)}{escape(name)}</span>' for name, color in keys)
    legend = f'<p class="soft">{names}</p>\n' if names else ""
    return titled_card(title, unit, f'{legend}<div class="chart">{figure}</div>\n{paragraph(note, "soft")}')


def titled_card(title: str, aside: str, inside: str) -> str:
    more = f' <span class="soft">{escape(aside)}</span>' if aside else ""
    return f'<section class="card"><h3>{escape(title)}{more}</h3>\n{inside}</section>\n'


def key(color: str) -> str:
    return f'<span class="key" style="border-color:{color}"></span>'


def grid(cards: Sequence[str]) -> str:
    return f'<div class="grid">\n{"".join(cards)}</div>\n' if cards else ""


def card(inside: str) -> str:
    return f'<section class="card">\n{inside}</section>\n' if inside else ""


def table(shown: Table, kind: str = "", shares: Sequence[Sequence[float]] = ()) -> str:
    """Returns a table that scrolls where it is wider than the page.

    Args:
        kind: "narrow" keeps number columns small.
        shares: of each cell, between 0 and 1, which colours it.
    """

    def cell(tag: str, column: int, words: str, share: float = 0.0) -> str:
        shade = f' style="--share:{100 * share:.0f}%"' if share else ""
        return f"<{tag}{_class('number' if column in shown.numbers else '')}{shade}>{escape(words)}</{tag}>"

    def line(row: Row, of_row: Sequence[float]) -> str:
        pairs = itertools.zip_longest(row, of_row[: len(row)], fillvalue=0.0)
        return "".join(cell("td", column, str(words), share) for column, (words, share) in enumerate(pairs))

    head = "".join(cell("th", column, words) for column, words in enumerate(shown.head))
    rows = (line(row, of_row) for row, of_row in itertools.zip_longest(shown.rows, shares, fillvalue=()))
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    inside = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
    return f'<div class="scroll"><table{_class(kind)}>\n{inside}</table></div>\n'


def facts(rows: Sequence[Row]) -> str:
    """Returns rows whose first cell names the others; below each other on a phone."""
    lines = (
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>\n'
        for name, *cells in rows
    )
    return f'<table class="facts"><tbody>\n{"".join(lines)}</tbody></table>\n' if rows else ""


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
