"""The page on commands is made from the parsers, and lacks none."""

from __future__ import annotations

import re
import sys

import pytest

from mps_trainer.cli import COMMANDS, _parser

from .pages import ROOT


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs" / "_ext"), *sys.path])
    import commands_table

    return {command.name: command for command in commands_table.commands()}


NAMES = {module.__name__.rpartition(".")[2] for module in COMMANDS}


def test_commands_have_sections(page):
    assert page.keys() == {"", *NAMES}


def flags_in(help: str) -> set[str]:
    """Returns the flags at the beginnings of the entries of argparse's list."""
    lines = re.findall(r"^  (-.*)$", help, re.MULTILINE)
    return {flag for line in lines for flag in re.findall(r"(?:^|, )(--?[a-z][\w-]*)", line.split("  ")[0])}


def test_sections_have_options_of_help(page):
    (below,) = (action for action in _parser()._actions if action.dest == "command")
    for name, parser in below.choices.items():
        shown = {flag for called, _ in page[name].options for flag in re.findall(r"--?[a-z][\w-]*", called)}
        assert shown == flags_in(parser.format_help()) - {"-h", "--help"}


def test_help_texts_have_no_placeholders(page):
    texts = [text for command in page.values() for _, text in command.options]
    assert texts
    assert not [text for text in texts if "%" in text]
    assert "(default: 1)" in dict(page["check"].options)["--batches BATCHES"]


def test_commands_are_in_the_table():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    table = text.split("| `mps-trainer` |")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert set(re.findall(r"`(\w+)", " ".join(first))) == NAMES
