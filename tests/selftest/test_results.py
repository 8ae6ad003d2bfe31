"""The table and the JSON, from results alone."""

import json
import re
from dataclasses import replace

import pytest

from mps_trainer import DeviceRequest, MachineFacts, resolve
from mps_trainer.selftest import CheckResult, SelftestReport
from mps_trainer.tools.selftest.results import WIDTH, table
from tests.devices.machines import MACHINES

PASSED = CheckResult("losses", "passed", "largest difference 1.0e-06", 1.25, {"losses": [0.7, 0.6]})
SKIPPED = CheckResult("memory limit", "skipped", "the device is cpu", 0.0)
NAN = {"losses": [float("nan")]}
FAILED = CheckResult("bf16", "failed", "the loss is nan at step 1, " + "and so on " * 20, 12.0, NAN)
VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}
FACTS = MachineFacts(system="Darwin", os_version="15.1", machine="arm64").to_dict()
DECISION = {"device": "mps", "rejected": []}
REPORT = SelftestReport("mps", False, VERSIONS, DECISION, FACTS, (), checks=(PASSED, SKIPPED), seconds=1.3)


def test_a_line_has_name_result_seconds_and_a_text_that_goes_on_below_itself():
    assert table([PASSED, SKIPPED]) == [
        "check         result       s  what was found",
        "losses        passed     1.2  largest difference 1.0e-06",
        "memory limit  skipped    0.0  the device is cpu",
    ]
    lines = table([FAILED])
    assert len(lines) > 3
    assert max(map(len, lines)) <= WIDTH
    assert {line[:22].strip() for line in lines[2:]} == {""}
    assert " ".join(line[22:].strip() for line in lines[1:]) == FAILED.text.strip()


M3 = {**FACTS, "chip": "Apple M3 Pro", "memory_bytes": 18 * 2**30}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {},
            [
                "Checked: mps; macOS 15.1, arm64",
                "python 3.11.7, torch 2.13.0",
                "1 passed, 0 failed, 1 skipped, in 1.3 s.",
                "Verdict: training works on mps.",
            ],
        ),
        (
            {"facts": M3, "known_faults": ("zeros (pytorch issue 1)",)},
            [
                "Checked: mps; Apple M3 Pro, 18.0 GiB of memory, macOS 15.1, arm64",
                "Known fault of this torch on this macOS: zeros (pytorch issue 1).",
            ],
        ),
        ({"simulated": True}, ["Verdict: training works on the simulated mps device."]),
    ],
)
def test_the_report_begins_with_the_machine_and_ends_with_counts_and_verdict(changes, lines):
    report = replace(REPORT, **changes)
    printed = str(report).splitlines()
    assert [line for line in printed if line in lines] == lines
    assert printed[-1].startswith("Verdict: ")
    assert ("Checked: mps, SIMULATED; " in printed[0]) == ("imulated" in str(report)) == report.simulated
    assert ("its speed and its kernels differ from a Mac's" in str(report)) == report.simulated
    assert report.to_dict()["simulated"] is report.simulated
    failed = replace(report, checks=(PASSED, FAILED)).verdict
    assert re.match(r"training does not work correctly on .*mps.*: bf16 failed\. Run `mps-trainer doctor`", failed)


@pytest.mark.parametrize(
    ("machine", "unchecked"), [("m2_rosetta_mps_built_not_available", True), ("m3_macos_15", False), ("linux", False)]
)
def test_a_gpu_that_could_be_had_and_was_not_checked_is_named(machine, unchecked):
    decision = resolve(DeviceRequest(), MACHINES[machine])
    lines = str(replace(REPORT, device=decision.name, decision=decision.to_dict())).splitlines()
    assert lines[2].startswith("Not checked: mps, because this Python ") is unchecked
    assert lines[2].endswith("emulates on an Apple-silicon Mac. `mps-trainer doctor` says what to do.") is unchecked
    assert str(lines).count("Not checked") == unchecked


def test_json_has_everything_and_no_number_that_json_has_not():
    text = json.dumps(replace(REPORT, checks=(PASSED, FAILED)).to_dict())
    data = json.loads(text, parse_constant=pytest.fail)
    assert REPORT.passed
    assert data["checks"][1]["figures"]["losses"] == ["nan"]
    assert data["checks"][0]["figures"]["losses"] == [0.7, 0.6]
    assert MachineFacts.from_dict(data["facts"]).machine == "arm64"
    assert data["passed"] is False
