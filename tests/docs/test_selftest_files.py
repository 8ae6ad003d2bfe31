"""The result files of selftests on Macs are accepted, and others refused."""

import json

import pytest

from mps_trainer import MachineFacts
from mps_trainer.selftest import CheckResult, SelftestReport
from tests.conftest import refusal

FACTS = MachineFacts(system="Darwin", os_version="15.5", machine="arm64", chip="Apple M3 Pro", memory_bytes=18 * 2**30)
REPORT = SelftestReport(
    device="mps", simulated=False, versions={"torch": "2.13.0", "mps_trainer": "0.1.0"}, decision={},
    facts=FACTS.to_dict(), known_faults=(), seconds=2.0,
    checks=(CheckResult("losses", "passed", "", 1.0), CheckResult("bf16", "failed", "", 1.0)),
).to_dict()  # fmt: skip


@pytest.mark.parametrize(
    ("differences", "why"),
    [
        ({}, None),
        ({"simulated": True}, "simulated"),
        ({"device": "cpu"}, "of cpu"),
        ({"facts": {"system": "Linux"}}, "on Linux"),
        ({"known_faults": ["in /Users/ada/run.py"]}, "home folder"),
    ],
)
def test_a_file_is_shown_unless_it_is_of_another_machine_or_has_private_paths(extension, tmp_path, differences, why):
    read, path = extension("selftests").read, tmp_path / "m3-pro-18gb.json"
    path.write_text(json.dumps({**REPORT, **differences}), encoding="utf-8")
    if why is not None:
        assert why in refusal(read, path, kind=ValueError)
        return
    row = read(path)
    assert row.machine == "Apple M3 Pro, 18.0 GiB"
    assert row.versions == "macOS 15.5, torch 2.13.0, mps_trainer 0.1.0"
    assert row.checks == "1 of 2 passed; bf16 failed"


def test_given_files_can_be_read(extension):
    for path in extension("selftests").FOLDER.glob("*.json"):
        assert extension("selftests").read(path).machine


def test_table_has_a_row_for_each_file(extension, tmp_path, monkeypatch):
    module = extension("selftests")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    assert module.selftests_table() == "No Mac has been tested yet."
    for name in ("m3.json", "m4.json"):
        (tmp_path / name).write_text(json.dumps(REPORT), encoding="utf-8")
    rows = module.selftests_table().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| `m3.json`", "| `m4.json`"]
    assert rows[0].endswith(
        " | Apple M3 Pro, 18.0 GiB | macOS 15.5, torch 2.13.0, mps_trainer 0.1.0 | 1 of 2 passed; bf16 failed |"
    )
