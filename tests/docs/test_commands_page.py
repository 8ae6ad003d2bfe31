"""The page on commands is made from the parsers, and misses none; README leads to it."""

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


def test_every_command_has_a_section(page):
    assert page.keys() == {"", *NAMES}


def flags_in(help: str) -> set[str]:
    """Those at the beginning of an entry of argparse's list."""
    lines = re.findall(r"^  (-.*)$", help, re.MULTILINE)
    return {flag for line in lines for flag in re.findall(r"(?:^|, )(--?[a-z][\w-]*)", line.split("  ")[0])}


def test_a_section_has_every_option_that_help_shows(page):
    (below,) = (action for action in _parser()._actions if action.dest == "command")
    for name, parser in below.choices.items():
        shown = {flag for called, _ in page[name].options for flag in re.findall(r"--?[a-z][\w-]*", called)}
        assert shown == flags_in(parser.format_help()) - {"-h", "--help"}


def test_no_placeholder_of_a_help_text_is_left(page):
    texts = [text for command in page.values() for _, text in command.options]
    assert texts
    assert not [text for text in texts if "%" in text]
    assert "(default: 1)" in dict(page["check"].options)["--batches BATCHES"]


def test_a_usage_says_what_can_be_left_out(page):
    assert page["doctor"].usage == "mps-trainer doctor [--json] [--facts FILE]"
    assert page["check"].usage.endswith(" SCRIPT [ARGUMENTS]")


def test_a_section_begins_with_the_example_of_help(page):
    assert page[""].opening == "start here: mps-trainer doctor"
    examples = {name: command.opening for name, command in page.items() if name}
    assert {name: text.split()[:3] for name, text in examples.items()} == {
        name: ["example:", "mps-trainer", name] for name in NAMES
    }


def test_every_command_is_in_the_table_of_commands():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    table = text.split("| `mps-trainer` |")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert set(re.findall(r"`(\w+)", " ".join(first))) == NAMES


def test_readme_leads_to_the_page():
    assert "](docs/commands.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
