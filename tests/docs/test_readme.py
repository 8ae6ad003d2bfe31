"""README is short, says what was never tested before it gives figures, and its main command writes a curve."""

import re

from .pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_short():
    assert len(README.splitlines()) <= 80


def test_readme_states_its_status_once_and_before_any_figure():
    status = "Alpha: tested on Linux CPUs and a simulated mps device, not yet on a Mac."
    assert README.count(status) == 1
    before = re.sub(r"`[^`]*`|\]\([^)]*\)", "", README.split(status)[0])
    assert re.findall(r"\d", before) == []


def test_readme_lines_of_commands_can_be_read():
    commands = re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(commands) == 2
    assert max(len(line) for command in commands for line in command.splitlines()) <= 95


def test_main_command_evaluates_each_epoch_so_that_the_report_has_a_curve():
    assert "--eval_strategy epoch" in README
