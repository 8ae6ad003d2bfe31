"""The API reference lists every public name, and each has a docstring."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from .pages import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
PUBLIC = ("mps_trainer", "mps_trainer.check", "mps_trainer.simulator", "mps_trainer.selftest")


def listed() -> set[str]:
    """Returns the objects of the directives, with their modules."""
    found, module = set(), "mps_trainer"
    for line in PAGE.splitlines():
        if (current := re.match(r"\.\. currentmodule:: (\S+)", line)) is not None:
            module = current[1]
        elif (directive := re.match(r"\.\. (?:auto\w+|py:data):: (\S+)", line)) is not None:
            name = directive[1]
            found.add(name if name.startswith("mps_trainer.") else f"{module}.{name}")
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_listed(module):
    names = {f"{module}.{name}" for name in importlib.import_module(module).__all__ if name != "__version__"}
    assert names - listed() == set()


@pytest.mark.parametrize("name", sorted(listed()))
def test_listed_names_exist_with_docstrings(name):
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    assert inspect.getdoc(found) if not inspect.isclass(found) else found.__doc__
