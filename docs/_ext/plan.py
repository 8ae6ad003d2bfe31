"""Where the rooms of a house are and how the arrows between them go, so that few cross and none runs through a room.

The usual layered drawing (Sugiyama): an arrow over several floors has a shaft on each of them, rooms and shafts are
put in the order of what they lead to, and then as nearly above it as their widths allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from imports import Graph

HEIGHT = 48.0  # of a room
STOREY = 92.0  # from floor to floor
GAP = 26.0  # between rooms
SHAFT = 14.0  # width of an arrow's way past a floor
ROOF = 58.0
MARGIN = 34.0
LETTER = 8.3  # width of a letter of a name
_SWEEPS = 60
_STRAIGHT = 12  # how much more a shaft heeds another shaft than a room


@dataclass(frozen=True)
class Room:
    """A room with its place, from the left and from the top."""

    name: str
    left: float
    top: float
    width: float
    height: float = HEIGHT

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


@dataclass(frozen=True)
class Plan:
    """All rooms, the paths of all arrows, the size of the whole, and where the roof ends."""

    rooms: list[Room]
    arrows: list[str]
    width: float
    height: float
    eaves: float


@dataclass(frozen=True)
class _Shaft:
    """The place of an arrow on a floor that it goes past."""

    above: str
    below: str
    floor: int


_Item = str | _Shaft


def plan(graph: Graph, floors: dict[str, int]) -> Plan:
    """The house for rooms and the imports to draw; each import has to lead to a lower floor."""
    ways = {(a, b): _way(a, b, floors) for a in sorted(graph) for b in sorted(graph[a])}
    rows: list[list[_Item]] = [[] for _ in range(max(floors.values()) + 1)]
    for room in sorted(graph):
        rows[floors[room]].append(room)
    for way in ways.values():
        for shaft in way[1:-1]:
            rows[shaft.floor].append(shaft)
    up: dict[_Item, list[_Item]] = {item: [] for row in rows for item in row}
    down: dict[_Item, list[_Item]] = {item: [] for row in rows for item in row}
    for way in ways.values():
        for higher, lower in pairwise(way):
            down[higher].append(lower)
            up[lower].append(higher)
    _order(rows, up, down)
    x = _place(rows, up, down)
    left = min(x[item] - _width(item) / 2 for item in x) - MARGIN
    x = {item: value - left for item, value in x.items()}
    top = {floor: ROOF + MARGIN / 2 + (len(rows) - 1 - floor) * STOREY for floor in range(len(rows))}
    rooms = [Room(r, x[r] - _width(r) / 2, top[floors[r]], _width(r)) for r in sorted(graph)]
    arrows = [_path(way, x, top, floors, _ports(way, x, up, down)) for way in ways.values()]
    width = max(x[item] + _width(item) / 2 for item in x) + MARGIN
    return Plan(rooms, arrows, width, top[0] + HEIGHT + MARGIN, ROOF)


def _way(above: str, below: str, floors: dict[str, int]) -> list[_Item]:
    return [above, *(_Shaft(above, below, floor) for floor in range(floors[above] - 1, floors[below], -1)), below]


def _width(item: _Item) -> float:
    return SHAFT if isinstance(item, _Shaft) else max(118.0, len(item) * LETTER + 26)


def _order(rows: list[list[_Item]], up: dict[_Item, list[_Item]], down: dict[_Item, list[_Item]]) -> None:
    """Puts each row in the order of the middles of what its items lead to, from above and from below in turn."""
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        near = up if downward else down
        for index in range(len(rows) - 1, -1, -1) if downward else range(len(rows)):
            place = {item: position for row in rows for position, item in enumerate(row)}
            size = {item: len(row) for row in rows for item in row}

            def key(item: _Item, near: dict = near, place: dict = place, size: dict = size) -> float:
                others = near[item]
                mine = (place[item] + 0.5) / size[item]
                return fmean((place[other] + 0.5) / size[other] for other in others) if others else mine

            rows[index].sort(key=key)


def _place(rows: list[list[_Item]], up: dict[_Item, list[_Item]], down: dict[_Item, list[_Item]]) -> dict:
    """The middle of each item, as near to those of its neighbours as the order and the widths allow."""
    x: dict[_Item, float] = {}
    for row in rows:
        _settle(row, x, lambda _: 0.0)
    for _ in range(_SWEEPS):
        for row in [*rows, *reversed(rows)]:
            _settle(row, x, lambda item: _pulled(item, [*up[item], *down[item]], x))
    return x


def _pulled(item: _Item, others: list[_Item], x: dict[_Item, float]) -> float:
    """Where its neighbours would have an item; one shaft has another right below it, so that arrows are straight."""
    weights = [_STRAIGHT if isinstance(item, _Shaft) and isinstance(other, _Shaft) else 1 for other in others]
    return fmean([x[other] for other in others], weights) if others else x[item]


def _settle(row: Sequence[_Item], x: dict[_Item, float], wanted: Callable[[_Item], float]) -> None:
    """Gives the items of a row the places they want, pushed apart: halfway between pushing right and pushing left."""
    wishes = [wanted(item) for item in row]
    apart = [(_width(a) + _width(b)) / 2 + GAP for a, b in pairwise(row)]
    right, left = list(wishes), list(wishes)
    for i, gap in enumerate(apart):
        right[i + 1] = max(right[i + 1], right[i] + gap)
    for i in range(len(apart) - 1, -1, -1):
        left[i] = min(left[i], left[i + 1] - apart[i])
    for item, a, b in zip(row, right, left, strict=True):
        x[item] = (a + b) / 2


def _ports(way: list[_Item], x: dict, up: dict, down: dict) -> tuple[float, float]:
    """How far from the middle of its first and its last room an arrow begins and ends."""
    return _port(way[0], way[1], down, x), _port(way[-1], way[-2], up, x)


def _port(room: _Item, other: _Item, near: dict, x: dict) -> float:
    others = sorted(near[room], key=lambda item: x[item])
    spread = min(22.0, (_width(room) - 30) / max(len(others), 1))
    return (others.index(other) - (len(others) - 1) / 2) * spread


def _path(way: list[_Item], x: dict, top: dict[int, float], floors: dict, ports: tuple[float, float]) -> str:
    """From the floor of one room to the ceiling of the other, straight down the shafts between them."""
    at, y = x[way[0]] + ports[0], top[floors[way[0]]] + HEIGHT
    path = f"M{at:.1f} {y:.1f}"
    for item in way[1:]:
        last = isinstance(item, str)
        floor = floors[item] if last else item.floor
        to = x[item] + (ports[1] if last else 0)
        end, half = top[floor], (top[floor] - y) / 2
        path += f" C{at:.1f} {y + half:.1f} {to:.1f} {end - half:.1f} {to:.1f} {end - (2 if last else 0):.1f}"
        at, y = to, end
        if not last:
            y = end + HEIGHT
            path += f" V{y:.1f}"
    return path
