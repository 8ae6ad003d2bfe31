"""The page on the selftest names its checks, options and tolerances."""

from __future__ import annotations

import re

from mps_trainer.cli import _parser
from mps_trainer.selftest import CHECKS, CheckResult
from mps_trainer.selftest.numbers import TOLERANCES
from mps_trainer.selftest.results import table

from .pages import ROOT, all_blocks

PAGE = (ROOT / "docs" / "selftest.md").read_text(encoding="utf-8")


def test_checks_are_described():
    rows = PAGE.split("## Checks")[1].split("\n## ")[0]
    named = [name for row in re.findall(r"^\| (`.*?`) \|", rows, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)]
    assert named == list(CHECKS)


def test_shown_screen_has_all_checks():
    (screen,) = all_blocks(kind="selftest")
    heading = table([CheckResult(name, "passed", "", 0.0) for name in CHECKS])[0]
    rows = screen.text.split(f"\n{heading}\n")[1].split("\n\n")[0]
    width = heading.index("result")
    assert [line[:width].strip() for line in rows.splitlines() if line[:width].strip()] == list(CHECKS)


def test_shown_tolerances_are_those_of_checks():
    rows = PAGE.split("## Tolerances")[1].split("\n## ")[0]
    allowed = {float(value) for value in re.findall(r"\| (\d+e-\d+) \|$", rows, re.MULTILINE)}
    assert allowed == {tolerance.relative for tolerance in TOLERANCES.values()}


def test_options_are_in_the_table():
    (subparsers,) = (action for action in _parser()._actions if action.dest == "command")
    options = {word for action in subparsers.choices["selftest"]._actions for word in action.option_strings}
    rows = PAGE.split("| option |")[1].split("\n\n")[0]
    assert {word for word in options if word.startswith("--")} - {"--help"} == set(re.findall(r"`(--\w+)", rows))
