"""Links in README, the examples and the pages lead to existing files and headings, on GitHub and in Sphinx."""

import functools
import re
from pathlib import Path

import pytest

from .pages import PAGES, ROOT, all_blocks

ALL = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("examples/*/README.md")),
    ROOT / "benchmarks/results/README.md",
]
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?:\]\(|<img src=\")([^)\"\s]+)[)\"]")


def text_of(page: Path) -> str:
    """Returns the text of a page without code, in which brackets are no links."""
    return re.sub(r"(?<!\})`[^`\n]*`", "", _FENCED.sub("", page.read_text(encoding="utf-8")))


@functools.cache
def anchors_of(page: Path, levels: int = 6) -> set[str]:
    """Returns the anchors that GitHub and Sphinx give the headings of a page."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(rf"^#{{1,{levels}}} (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_link_targets_exist(page):
    for link in _LINK.findall(text_of(page)):
        path, _, anchor = link.partition("#")
        if path.startswith(("https://", "mailto:")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_work_on_github_and_in_sphinx(page):
    text = text_of(page)
    assert not re.search(r"\{\w+\}`", page.read_text(encoding="utf-8")), "a role, which GitHub shows as text"
    assert not re.search(r"\[\]\(", re.sub(r"\[`[^`]*`\]", "[code]", page.read_text(encoding="utf-8"))), (
        "no text to click"
    )
    if page.parent != ROOT / "docs":
        return
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        if path.startswith(("https://", "mailto:")):
            continue
        target = page.parent / path if path else page
        if (
            target.suffix == ".md"
        ):  # Sphinx has the files of this folder alone, and anchors for headings of three levels
            assert target.parent.resolve() == ROOT / "docs", link
            assert not anchor or anchor in anchors_of(target, levels=3), link


def test_only_contents_and_the_drawing_need_sphinx():
    """GitHub shows a directive as code."""
    assert {(block.page, block.language) for block in all_blocks() if block.language.startswith("{")} == {
        ("docs/index.md", "{toctree}"),
        ("docs/architecture.md", "{house}"),
    }


@pytest.mark.parametrize("word", ["{doc}`fit`", "[](fit.md)", "[fit](../README.md)", "[fit](fit.md#nowhere)"])
def test_links_that_work_in_one_of_them_alone_are_found(word, tmp_path, monkeypatch):
    page = ROOT / "docs" / "fit.md"
    monkeypatch.setattr(type(page), "read_text", lambda path, **_: f"# Fit\n\n{word}\n")
    anchors_of.cache_clear()
    with pytest.raises(AssertionError):
        test_links_work_on_github_and_in_sphinx(page)
    anchors_of.cache_clear()
