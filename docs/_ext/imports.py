"""Reads from the source of a package who imports whom: rooms are folders and modules, an import leads to another room.

Imports within functions count, because they happen; those under `if TYPE_CHECKING` do not, because they never do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = dict[str, frozenset[str]]


def rooms_of(package: Path, lazy: Mapping[str, str] | None = None, doors: Mapping[str, str] | None = None) -> Graph:
    """The rooms of a package, each with those that it imports.

    A room is a folder or a module right in the package; `name_more.py` belongs to `name.py`. The package's own
    `__init__` and `__main__` are no rooms. Modules that import nothing of the package are one room, under all others.

    Args:
        lazy: where the names are that the package hands on, as ".module"; for `from .. import Name`.
        doors: the room of each module that only hands on names of that room.
    """
    files = [file for file in sorted(package.rglob("*.py")) if file.parent != package or file.name[:2] != "__"]
    first = {file: file.relative_to(package).with_suffix("").parts[0] for file in files}
    modules = {file.stem for file in files if file.parent == package}
    home = {name: next((n for n in modules if name.startswith(n + "_")), name) for name in first.values()}
    home.update(doors or {})
    found: dict[str, set[str]] = {home[name]: set() for name in first.values()}
    for file in files:
        for target in _imported(file, package, lazy or {}):
            if target in home:
                found[home[first[file]]].add(home[target])
    graph = {room: targets - {room} for room, targets in found.items()}
    base = ", ".join(sorted(room for room in graph if room in modules and not graph[room]))
    at_the_base = set(base.split(", "))
    merged = {
        room: frozenset(base if target in at_the_base else target for target in targets)
        for room, targets in graph.items()
        if room not in at_the_base
    }
    return {**merged, base: frozenset()} if base else merged


def _imported(file: Path, package: Path, lazy: Mapping[str, str]) -> Iterator[str]:
    """The names right in the package that a file imports from."""
    folder = (package.name, *file.relative_to(package).parts[:-1])
    for node in _executed(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            paths = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            path = (*base, *(node.module or "").split(".")) if node.module else base
            paths = [(*path, alias.name) for alias in node.names]
        else:
            continue
        for path in paths:
            if path[0] == package.name and len(path) > 1:
                yield lazy.get(path[1], "." + path[1]).split(".")[1]


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those for the type checker alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _executed(child)


def floors_of(graph: Graph) -> dict[str, int]:
    """The floor of each room: above all that it imports, and else as near below those that import it as can be.

    Raises ValueError if rooms import each other, in whatever roundabout way.
    """
    floor: dict[str, int] = {}

    def place(room: str, below: tuple[str, ...] = ()) -> int:
        if room in below:
            raise ValueError("These import each other: " + " -> ".join([*below[below.index(room) :], room]))
        if room not in floor:
            floor[room] = max((place(other, (*below, room)) + 1 for other in graph[room]), default=0)
        return floor[room]

    for room in graph:
        place(room)
    for room in sorted(floor, key=lambda name: -floor[name]):
        above = [floor[other] for other in graph if room in graph[other]]
        if above and floor[room] > 0:
            floor[room] = min(above) - 1
    return floor


def without_shortcuts(graph: Graph) -> Graph:
    """The same without the imports that follow from others: a leads to c where a imports b and b imports c."""
    reached: dict[str, frozenset[str]] = {}

    def beyond(room: str) -> frozenset[str]:
        if room not in reached:
            reached[room] = graph[room].union(*(beyond(other) for other in graph[room]))
        return reached[room]

    return {room: frozenset(t for t in graph[room] if not any(t in beyond(o) for o in graph[room])) for room in graph}
