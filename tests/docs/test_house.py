"""The drawing of the package shows its real imports."""

from xml.etree import ElementTree

from .pages import ROOT

PACKAGE = ROOT / "mps_trainer"
SVG = "{http://www.w3.org/2000/svg}"
# These modules belong to the room of the module whose name they begin with.
OF_OTHER_ROOMS = {"training_args_seq2seq", "trainer_seq2seq", "trainer_checks"}


def test_every_folder_and_module_is_in_one_room(extension):
    inside = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    rooms = [name for room in extension("house").graph() for name in room.split(", ")]
    assert {name for name in inside if name[:2] != "__"} == {*rooms, *OF_OTHER_ROOMS, *extension("house").DOORS}
    assert len(rooms) == len(set(rooms))


def test_drawing_has_every_room_once_and_an_arrow_for_each_import(extension):
    house = extension("house")
    graph = house.graph()
    assert {"trainer", "utils"} <= graph["tools"]  # imported within a function, and by a module of a folder
    assert "replace_transformers" in graph["cli"]  # by `from ..`
    svg = ElementTree.fromstring(house.drawing(graph).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
    names = [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "name"]
    assert sorted(names) == sorted(graph)
    arrows = [path for path in svg.iter(f"{SVG}path") if path.get("class") == "arrow"]
    assert len(arrows) == sum(map(len, house.without_shortcuts(graph).values()))


def test_architecture_page_describes_every_folder():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    described = page.split("## Source tree")[1]
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in folders if f"| `mps_trainer/{name}/` |" not in described} == set()
