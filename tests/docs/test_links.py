"""Links in README, in the examples and in the documentation lead to files and headings that are there."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from .pages import PAGES, ROOT

ALL = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("examples/*/README.md")),
    ROOT / "benchmarks/results/README.md",
]
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ROLE = re.compile(r"\{doc\}`(?:[^`<]*<)?([^`<>]+)>?`")


def text_of(page: Path) -> str:
    """Without code, in which brackets are no links."""
    return re.sub(r"(?<!\})`[^`\n]*`", "", _FENCED.sub("", page.read_text(encoding="utf-8")))


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Returns the anchors that GitHub and Sphinx give the headings of a page."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page):
    for link in _LINK.findall(text_of(page)):
        path, _, anchor = link.partition("#")
        if path.startswith(("https://", "mailto:")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_pages_that_a_page_names_are_there(page):
    named = _ROLE.findall(page.read_text(encoding="utf-8"))
    assert {name for name in named if not (ROOT / "docs" / f"{name}.md").exists()} == set()


def test_every_page_is_in_one_group_of_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = [
        name for group in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL) for name in group.split("\n")
    ]
    names = [name for name in listed if re.fullmatch(r"[\w-]+", name)]
    assert sorted(names) == sorted(page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index")
