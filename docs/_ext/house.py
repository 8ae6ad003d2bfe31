"""The directive `house`: the package as a house, drawn when the pages are built, from what its modules import.

It is an SVG in the page whose colours are the theme's. Only the directive needs Sphinx.
"""

from __future__ import annotations

import functools
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from imports import Graph, floors_of, rooms_of, without_shortcuts
from plan import Plan, Room, plan

import mps_trainer

PACKAGE = Path(mps_trainer.__file__).parent
# Modules with the public names of a folder, which are part of its room.
DOORS = dict.fromkeys(("check", "fit", "simulator", "selftest"), "tools")

# Furo's variables, which change with light and dark; the second of each pair is for a page without them.
_STYLE = """
.house { overflow-x: auto; margin: 1rem 0; }
.house svg { display: block; width: 100%; min-width: 34rem; height: auto; font-family: var(--font-stack, sans-serif); }
.house .wall { fill: none; stroke: var(--color-foreground-border, #878787); stroke-width: 2; }
.house .room { fill: var(--color-background-secondary, #f2f3f5); stroke: var(--color-foreground-border, #878787); }
.house .name { fill: var(--color-foreground-primary, #222); font-size: 15px; font-weight: 600; text-anchor: middle; }
.house .size { fill: var(--color-foreground-secondary, #555); font-size: 12px; text-anchor: middle; }
.house .arrow { fill: none; stroke: var(--color-brand-primary, #2962ff); stroke-width: 1.6; }
.house .head { fill: var(--color-brand-primary, #2962ff); }
.house g:hover .room { stroke: var(--color-brand-primary, #2962ff); stroke-width: 2; }
"""


@functools.cache
def graph() -> Graph:
    """The rooms of this package, each with those that it imports."""
    return rooms_of(PACKAGE, mps_trainer._EXPORTS, DOORS)


def drawing(rooms: Graph) -> str:
    """The house as an SVG."""
    shown = without_shortcuts(rooms)
    drawn = plan(shown, floors_of(rooms))
    arrows = [f'<path class="arrow" marker-end="url(#house-head)" d="{path}"/>' for path in drawn.arrows]
    boxes = [_box(room, rooms) for room in drawn.rooms]
    return "\n".join(
        [
            f'<svg viewBox="0 0 {drawn.width:.0f} {drawn.height:.0f}" role="img" aria-labelledby="house-title">',
            '<title id="house-title">The folders and modules of mps_trainer; arrows point to imports.</title>',
            '<defs><marker id="house-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
            f'<path class="wall" d="{_walls(drawn)}"/>',
            *arrows,
            *boxes,
            "</svg>",
        ]
    )


def _walls(drawn: Plan) -> str:
    """A roof over the top floor, and walls down to the ground."""
    left, right, eaves, ground = 10, drawn.width - 10, drawn.eaves, drawn.height - 10
    return f"M{left} {ground} V{eaves} L{drawn.width / 2:.0f} 8 L{right} {eaves} V{ground} Z M{left} {eaves} H{right}"


def _box(room: Room, rooms: Graph) -> str:
    names = escape(room.name)
    rests_on = ", ".join(sorted(rooms[room.name])) or "nothing else of the package"
    return (
        f"<g><title>{names} imports {escape(rests_on)}.</title>"
        f'<rect class="room" x="{room.left:.0f}" y="{room.top:.0f}" width="{room.width:.0f}" '
        f'height="{room.height:.0f}" rx="4"/>'
        f'<text class="name" x="{room.middle:.0f}" y="{room.top + 20:.0f}">{names}</text>'
        f'<text class="size" x="{room.middle:.0f}" y="{room.top + 36:.0f}">{_size(room.name)}</text></g>'
    )


def _size(room: str) -> str:
    folder = PACKAGE / room
    names = room.split(", ")
    alone = [path for path in PACKAGE.glob("*.py") if any(f"{path.stem}_".startswith(f"{name}_") for name in names)]
    count = len(list(folder.rglob("*.py"))) if folder.is_dir() else len(alone)
    return f"{count} module{'s' * (count > 1)}"


class House(Directive):
    """`{house}` without arguments or content."""

    def run(self) -> list[nodes.Node]:
        html = f'<style>{_STYLE}</style>\n<div class="house">\n{drawing(graph())}\n</div>'
        return [nodes.raw("", html, format="html")]


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("house", House)
    # The package's source is not a file that Sphinx watches: a new import has to draw the page anew even so.
    app.connect("env-get-outdated", lambda *_: ["architecture"])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
