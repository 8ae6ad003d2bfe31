"""The settings of the mutation tests name tests and modules that exist."""

import re

import pytest

from tests import ROOT
from tests.mutation import AREAS, PACKAGE

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]


def test_selected_tests_exist():
    assert [name for name in SETTINGS["pytest_add_cli_args_test_selection"] if not (ROOT / name).exists()] == []


def test_left_out_tests_exist():
    left_out = [word.split("=", 1)[1] for word in SETTINGS["pytest_add_cli_args"] if word.startswith("--")]
    assert left_out
    for path, _, test in (name.partition("::") for name in left_out):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {test}\(", text, re.MULTILINE) if test else text


def test_every_area_is_mutated():
    of_areas = {path for area in AREAS.values() for name in area.files for path in (ROOT / PACKAGE).glob(name)}
    mutated = {path for name in SETTINGS["only_mutate"] for path in ROOT.glob(name)}
    assert of_areas - mutated == set()
    assert [name for name in SETTINGS["only_mutate"] if not list(ROOT.glob(name))] == []
