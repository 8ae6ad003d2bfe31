"""Messages refer to pages that exist, and that the reader can open."""

import ast
import importlib.metadata
import re
from email.message import Message
from unittest import mock

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


def test_a_page_is_a_path_in_a_clone_an_address_or_a_file_of_the_wheel(tmp_path, monkeypatch):
    assert page("faults") == "docs/faults.md"
    where, package, metadata = "https://host.example/owner/name", tmp_path / "site-packages" / "mps_trainer", Message()
    file = str(package / "_docs" / "faults.md")
    missing = mock.Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    assert page("faults", package) == file
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata)
    assert page("faults", package) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert page("faults", package) == "~/site-packages/mps_trainer/_docs/faults.md"
    for url in (f"Source, {where}", f"Documentation, {where}/tree/v1/docs"):
        metadata["Project-URL"] = url
    assert page("faults", package) == f"{where}/blob/v1/docs/faults.md"
