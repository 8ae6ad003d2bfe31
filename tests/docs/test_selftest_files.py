"""The selftests that people ran on their Macs are of Macs, and can be read."""

from __future__ import annotations

import json
import sys

import pytest

from mps_trainer import MachineFacts
from mps_trainer.selftest import CheckResult, SelftestReport

from .pages import ROOT

FACTS = MachineFacts(system="Darwin", os_version="15.5", machine="arm64", chip="Apple M3 Pro", memory_bytes=18 * 2**30)
REPORT = SelftestReport(
    device="mps",
    simulated=False,
    versions={"torch": "2.13.0", "mps_trainer": "0.1.0"},
    decision={},
    facts=FACTS.to_dict(),
    known_faults=(),
    checks=(CheckResult("losses", "passed", "", 1.0), CheckResult("bf16", "failed", "", 1.0)),
    seconds=2.0,
).to_dict()


@pytest.fixture
def selftests(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs" / "_ext"), *sys.path])
    import selftests

    return selftests


@pytest.fixture
def write(tmp_path):
    def write(**differences):
        path = tmp_path / "m3-pro-18gb.json"
        path.write_text(json.dumps({**REPORT, **differences}), encoding="utf-8")
        return path

    return write


def test_a_file_is_shown_with_its_machine_and_what_failed(selftests, write):
    row = selftests.read(write())
    assert row.machine == "Apple M3 Pro, 18.0 GiB"
    assert row.versions == "macOS 15.5, torch 2.13.0, mps_trainer 0.1.0"
    assert row.checks == "1 of 2 passed; bf16 failed"


@pytest.mark.parametrize(
    ("differences", "why"),
    [
        ({"simulated": True}, "is of mps, simulated on Darwin, not of a Mac's GPU"),
        ({"device": "cpu"}, "is of cpu on Darwin, not of a Mac's GPU"),
        ({"facts": {"system": "Linux"}}, "is of mps on Linux, not of a Mac's GPU"),
        ({"known_faults": ["in /Users/ada/run.py"]}, "has a home folder in it"),
    ],
)
def test_a_file_that_is_not_of_a_mac_or_tells_too_much_is_refused(selftests, write, differences, why):
    with pytest.raises(ValueError, match=why):
        selftests.read(write(**differences))


def test_all_that_were_given_can_be_read(selftests):
    for path in selftests.FOLDER.glob("*.json"):
        assert selftests.read(path).machine
