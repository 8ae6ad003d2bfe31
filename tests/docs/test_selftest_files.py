"""The result files of selftests on Macs are accepted, and others refused."""

import json

import pytest

from mps_trainer import MachineFacts
from mps_trainer.selftest import CheckResult, SelftestReport

FACTS = MachineFacts(system="Darwin", os_version="15.5", machine="arm64", chip="Apple M3 Pro", memory_bytes=18 * 2**30)
REPORT = SelftestReport(
    device="mps", simulated=False, versions={"torch": "2.13.0", "mps_trainer": "0.1.0"}, decision={},
    facts=FACTS.to_dict(), known_faults=(), seconds=2.0,
    checks=(CheckResult("losses", "passed", "", 1.0), CheckResult("bf16", "failed", "", 1.0)),
).to_dict()  # fmt: skip


@pytest.fixture
def selftests(extension):
    return extension("selftests")


@pytest.fixture
def write(tmp_path):
    def write(**differences):
        path = tmp_path / "m3-pro-18gb.json"
        path.write_text(json.dumps({**REPORT, **differences}), encoding="utf-8")
        return path

    return write


def test_file_is_shown_with_machine_and_failures(selftests, write):
    row = selftests.read(write())
    assert row.machine == "Apple M3 Pro, 18.0 GiB"
    assert row.versions == "macOS 15.5, torch 2.13.0, mps_trainer 0.1.0"
    assert row.checks == "1 of 2 passed; bf16 failed"


@pytest.mark.parametrize(
    ("differences", "why"),
    [
        ({"simulated": True}, "simulated"),
        ({"device": "cpu"}, "of cpu"),
        ({"facts": {"system": "Linux"}}, "on Linux"),
        ({"known_faults": ["in /Users/ada/run.py"]}, "home folder"),
    ],
)
def test_file_of_another_machine_or_with_private_paths_is_refused(selftests, write, differences, why):
    with pytest.raises(ValueError, match=why):
        selftests.read(write(**differences))


def test_given_files_can_be_read(selftests):
    for path in selftests.FOLDER.glob("*.json"):
        assert selftests.read(path).machine
