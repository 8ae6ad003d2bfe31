"""The result files from Macs are accepted, and others refused."""

import json
from dataclasses import replace

import pytest

from mps_trainer import MachineFacts
from mps_trainer.errors import MisconfigurationException
from mps_trainer.selftest import CheckResult, SelftestReport
from tests.conftest import refusal
from tests.speed.test_results import ATTENTION, LORA
from tests.speed.test_results import REPORT as SPEED

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


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"simulated": True}, "simulated"),
        ({"device": "cpu"}, "of cpu"),
        ({"device": "mps", "seconds": "long"}, "not a report"),
    ],
)
def test_a_speed_that_is_not_of_a_mac_is_refused(extension, tmp_path, changes, why):
    path = tmp_path / "m4-16gb-speed.json"
    path.write_text(json.dumps({**SPEED.to_dict(), **changes}), encoding="utf-8")
    kind = MisconfigurationException if "seconds" in changes else ValueError
    assert why in refusal(extension("selftests").read_speed, path, kind=kind)


def test_a_speed_has_a_row_for_each_training(extension, tmp_path):
    read, path = extension("selftests").read_speed, tmp_path / "m4-16gb-speed.json"
    path.write_text(json.dumps(replace(SPEED, workloads=(LORA, ATTENTION)).to_dict()), encoding="utf-8")
    (row,) = read(path)
    assert row.machine == "Apple M4, 16.0 GiB, macOS 15.5, torch 2.15.0, mps_trainer 0.1.0"
    assert row.workload == "LoRA, in full"
    assert (row.ours, row.transformers) == ("410 ms, 2.44 steps/s", "500 ms, 2 steps/s")
    assert row.ratio == "0.80 (0.75 to 0.84, 3 rounds)"
    assert row.memory == "3.0 GiB / 2.0 GiB"
    path.write_text(json.dumps(replace(SPEED, unjudged=("the machine is hot",)).to_dict()), encoding="utf-8")
    (row,) = read(path)
    assert row.ratio == "not judged: the machine is hot"
    path.write_text(json.dumps(replace(SPEED, smaller=True).to_dict()), encoding="utf-8")
    assert read(path) == []


def test_files_of_both_commands_lie_in_one_folder(extension, tmp_path, monkeypatch):
    module = extension("selftests")
    for name, report in {"a.json": REPORT, "b.json": SPEED.to_dict()}.items():
        (tmp_path / name).write_text(json.dumps(report), encoding="utf-8")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    assert [path.name for path in module.files("selftest")] == ["a.json"]
    assert [path.name for path in module.files("speed")] == ["b.json"]


def test_given_files_can_be_read(extension):
    module = extension("selftests")
    found = [*module.files("selftest"), *module.files("speed")]
    assert sorted(found) == sorted(module.FOLDER.glob("*.json"))
    assert all(module.read(path).machine for path in module.files("selftest"))
    assert all(module.read_speed(path) for path in module.files("speed"))
