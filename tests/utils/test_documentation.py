"""Messages refer to pages that exist, and that the reader can open."""

import ast
import importlib.metadata
import re
from email.message import Message
from pathlib import Path
from unittest import mock

import pytest

from mps_trainer.utils.documentation import page
from tests import ROOT

PACKAGE = ROOT / "mps_trainer"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def pages_named() -> set[str]:
    """The arguments of every call of page() in the package."""
    calls = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = [call.args[0] for call in calls if getattr(call.func, "id", "") == "page" and call.args]
    return {name.value for name in given if isinstance(name, ast.Constant)}


def test_every_page_that_a_message_names_exists():
    assert {"faults", "memory"} <= pages_named()
    assert [name for name in pages_named() if not (ROOT / "docs" / f"{name}.md").is_file()] == []


def test_no_text_of_the_package_names_a_page_by_its_path():
    """A user of a wheel has no docs/."""
    texts = [
        (path.name, node.value)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [(name, text) for name, text in texts if re.search(r"docs/[\w-]+\.md", text)] == []


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Sets the metadata of an installed wheel; returns its package."""

    def install(*urls: str) -> Path:
        metadata = Message()
        for url in urls:
            metadata["Project-URL"] = url
        monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata)
        return tmp_path / "site-packages" / "mps_trainer"

    return install


def test_a_clone_has_the_page():
    assert page("faults") == "docs/faults.md"


def test_a_published_wheel_gives_the_address(installed):
    where = "https://host.example/owner/name"
    package = installed(f"Source, {where}", f"Documentation, {where}/tree/v1/docs")
    assert page("faults", package) == f"{where}/blob/v1/docs/faults.md"


def test_any_other_wheel_gives_the_file_without_the_name_of_the_user(installed, tmp_path, monkeypatch):
    package = installed()
    assert page("faults", package) == str(package / "_docs" / "faults.md")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert page("faults", package) == "~/site-packages/mps_trainer/_docs/faults.md"


def test_a_copied_package_without_metadata_gives_the_file(tmp_path, monkeypatch):
    missing = mock.Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    package = tmp_path / "site-packages" / "mps_trainer"
    assert page("faults", package) == str(package / "_docs" / "faults.md")
