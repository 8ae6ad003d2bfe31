"""Links in README, in the examples and in the documentation lead to existing files and headings."""

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


def text_of(page: Path) -> str:
    """Returns the text of a page without code, in which brackets are no links."""
    return re.sub(r"(?<!\})`[^`\n]*`", "", _FENCED.sub("", page.read_text(encoding="utf-8")))


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Returns the anchors that GitHub and Sphinx give the headings of a page."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
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
