"""The drawing of the package: it is of the real imports, and the package is a house, not a maze."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest

from .pages import ROOT

PACKAGE = ROOT / "mps_trainer"
SVG = "{http://www.w3.org/2000/svg}"


# modules that belong to the room of the module whose name they begin with
OF_OTHER_ROOMS = {"training_args_seq2seq", "trainer_seq2seq", "trainer_setup", "trainer_checks"}


@pytest.fixture
def house(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs" / "_ext"), *sys.path])
    import house

    return house


@pytest.fixture
def imports(house):
    import imports

    return imports


def test_every_folder_and_module_of_the_package_is_in_one_room(house):
    inside = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    rooms = [name for room in house.graph() for name in room.split(", ")]
    assert {name for name in inside if name[:2] != "__"} == {*rooms, *OF_OTHER_ROOMS}
    assert len(rooms) == len(set(rooms))


def test_an_import_that_is_known_leads_where_it_does(house):
    graph = house.graph()
    assert {"data", "checkpoints", "loop"} <= graph["trainer"]
    assert "trainer" in graph["check"]  # within a function
    assert "trainer" not in graph["guards"]  # for the type checker alone


def test_the_trainer_knows_nothing_of_those_who_look_at_it(house, imports):
    floors = imports.floors_of(house.graph())
    assert floors["trainer"] < min(floors[name] for name in ("check", "simulator", "selftest", "cli"))


def test_rooms_that_import_each_other_are_refused(imports):
    with pytest.raises(ValueError, match="a -> b -> c -> a"):
        imports.floors_of({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a")})


def test_an_import_that_follows_from_others_is_left_out(imports):
    graph = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()}
    assert imports.without_shortcuts(graph) == {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset()}


def test_imports_are_found_however_they_are_written(imports, tmp_path):
    package = tmp_path / "home"
    files = {
        "__init__.py": "from .kitchen import Stove",
        "errors.py": "",
        "kitchen/__init__.py": "from .stove import Stove",
        "kitchen/stove.py": "from ..errors import Burnt\nimport home.cellar.coal",
        "cellar/coal.py": "def lift():\n    from .. import errors",
        "attic.py": "if TYPE_CHECKING:\n    from .cellar import coal\nfrom . import Stove",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert imports.rooms_of(package, {"Stove": ".kitchen"}) == {
        "attic": frozenset({"kitchen"}),
        "cellar": frozenset({"errors"}),
        "kitchen": frozenset({"cellar", "errors"}),
        "errors": frozenset(),
    }


def boxes(svg: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    sides = ("x", "y", "width", "height")
    found = [[float(box.get(side) or 0) for side in sides] for box in svg.iter(f"{SVG}rect")]
    return [(x, y, x + width, y + height) for x, y, width, height in found]


def test_the_drawing_has_every_room_once_and_an_arrow_for_each_import_that_is_shown(house, imports):
    graph = house.graph()
    svg = ElementTree.fromstring(house.drawing(graph).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
    names = [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "name"]
    assert sorted(names) == sorted(graph)
    arrows = [path for path in svg.iter(f"{SVG}path") if path.get("class") == "arrow"]
    assert len(arrows) == sum(map(len, imports.without_shortcuts(graph).values()))


def test_a_room_has_the_number_of_its_modules(house):
    sizes = {name: house._size(name) for name in house.graph()}
    assert sizes["training_args"] == "2 modules"
    base = next(name for name in sizes if "errors, " in name)
    assert sizes[base] == f"{base.count(',') + 1} modules"
    assert sizes["callbacks"] == f"{len(list((PACKAGE / 'callbacks').glob('*.py')))} modules"


def test_no_room_lies_on_another_or_outside_the_picture(house):
    svg = ElementTree.fromstring(
        house.drawing(house.graph()).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )
    _, _, width, height = map(float, (svg.get("viewBox") or "").split())
    rooms = boxes(svg)
    for i, (left, top, right, bottom) in enumerate(rooms):
        assert 0 < left < right < width
        assert 0 < top < bottom < height
        for other in rooms[i + 1 :]:
            assert right < other[0] or other[2] < left or bottom < other[1] or other[3] < top


def test_the_page_says_what_is_in_each_room(house):
    page = (ROOT / "docs" / "source-tree.md").read_text(encoding="utf-8")
    described = page.split("## Package")[1]
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in folders if f"| `mps_trainer/{name}/` |" not in described} == set()
