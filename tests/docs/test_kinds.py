"""Each page is of one kind and not too wide; README states its status before any figure."""

import re

import pytest

from .pages import PAGES, ROOT, blocks_of

KINDS = ("Tutorial", "How-to", "Reference", "Explanation", "Development")
# Characters of a line of code that fit beside the sidebar in a window that is 1300 pixels wide. Output (text) wraps,
# see docs/_static/pages.css.
WIDTH = 88
# Pages with longer lines, each with the reason.
WIDER = {
    "preferences": "a pair of answers is one line of its file, to be copied",
    "language-models": "a chat is one line of its file, to be copied",
    "README": "its two commands are one line each, to be copied whole",
}


def toctrees() -> list[tuple[str, list[str]]]:
    """Returns the caption and the pages of each toctree of the front page."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    found = []
    for options, names in re.findall(r"```\{toctree\}\n((?::[^\n]*\n)*)\n(.*?)```", index, re.DOTALL):
        caption = re.search(r"^:caption: (.*)$", options, re.MULTILINE)
        assert caption is not None, names
        found.append((caption[1].strip('"'), names.split()))
    return found


def kind_of(caption: str) -> str:
    return caption.partition(":")[0]


BY_NAME = {page.stem: page for page in PAGES}


def test_pages_are_of_one_kind_each():
    assert {kind_of(caption) for caption, _ in toctrees()} == set(KINDS)
    listed = [name for _, names in toctrees() for name in names]
    assert sorted(listed) == sorted(page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index")


@pytest.mark.parametrize("name", sorted({*BY_NAME} - {*WIDER}))
def test_code_fits_beside_the_sidebar(name):
    blocks = [block for block in blocks_of(BY_NAME[name]) if block.language not in ("text", "{eval-rst}")]
    assert [line for block in blocks for line in block.text.splitlines() if len(line) > WIDTH] == []


# What people type into the search, and the page that answers. Sphinx finds words in headings first.
SEARCHED = {
    "out of memory": "memory",
    "batch size": "memory",
    "lora": "peft",
    "resume": "training",
    "csv": "pretrained-classifier",
    "bf16": "training",
    "learning rate": "optimizers",
    "tensorboard": "logging",
    "gradient checkpointing": "training",
    "gguf": "export",
    "faster": "speed",
}


@pytest.mark.parametrize("query", SEARCHED)
def test_searched_words_are_in_a_heading(query):
    text = re.sub(r"^```.*?^```$", "", BY_NAME[SEARCHED[query]].read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = [set(re.findall(r"\w+", heading.lower())) for heading in re.findall(r"^#+ (.*)$", text, re.M)]
    assert any(set(query.split()) <= words for words in headings)


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_states_its_status_once_and_before_any_figure():
    status = "Alpha: tested on Linux CPUs and a simulated mps device, not yet on a Mac."
    assert README.count(status) == 1
    before = re.sub(r"`[^`]*`|\]\([^)]*\)", "", README.split(status)[0])
    assert re.findall(r"\d", before) == []


def test_report_of_readmes_command_has_a_curve_of_evaluations():
    assert "--eval_strategy epoch" in README
