"""The page on doctor shows what doctor and env print, and has every finding."""

from __future__ import annotations

import re

import pytest

from mps_trainer.cli.env import listing
from mps_trainer.cli.screen import screen
from mps_trainer.devices.findings import findings
from tests.devices.diagnosed import DIAGNOSED

from .machines import REPORTED
from .pages import ROOT, all_blocks, unwrapped

PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
SCREENS = all_blocks(kind="doctor")
LISTINGS = all_blocks(kind="env")


@pytest.mark.parametrize("block", SCREENS, ids=str)
def test_a_shown_screen_is_what_doctor_prints_on_that_machine(block):
    assert block.text == screen(REPORTED[block.label])


@pytest.mark.parametrize("block", LISTINGS, ids=str)
def test_a_shown_list_is_what_env_prints_on_that_machine(block):
    assert unwrapped(block.text) == listing(REPORTED[block.label])


def test_every_machine_is_shown():
    assert {block.label for block in SCREENS} == set(REPORTED)
    assert LISTINGS


def test_the_table_has_every_finding_with_its_severities():
    shown = dict(re.findall(r"^\| `([\w-]+)` \| ([\w, ]+) \|", PAGE, re.MULTILINE))
    found = [finding for row in DIAGNOSED.values() for finding in findings(row.facts)]
    severities = {finding.name: {other.severity for other in found if other.name == finding.name} for finding in found}
    assert {name: set(text.split(", ")) for name, text in shown.items()} == severities
