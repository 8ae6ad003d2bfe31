"""`mps-trainer selftest`."""

import errno
import json
import os
from unittest import mock

import pytest

from mps_trainer.cli import main, selftest
from mps_trainer.selftest import CHECKS
from tests.devices.machines import MACHINES

from .test_doctor import run


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


@pytest.fixture
def fine(on_cpu, monkeypatch):
    for name in CHECKS:
        monkeypatch.setitem(CHECKS, name, lambda lab: ("fine", {}))


def test_selftest_of_a_working_machine_is_0_with_a_table_and_a_report(on_cpu, capsys, tmp_path):
    assert main(["selftest", "--json", str(tmp_path / "report.json")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Checked: cpu; ")
    assert f"[1/{len(CHECKS)}] losses as on the CPU ... passed, " in printed.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["passed"], report["simulated"], report["device"]) == (True, False, "cpu")
    assert [check["name"] for check in report["checks"]] == list(CHECKS)
    assert {"python", "mps_trainer", "torch", "transformers"} <= set(report["versions"])
    assert main(["doctor", "--facts", str(tmp_path / "report.json")]) in (0, 1)
    assert "recorded " in capsys.readouterr().out


def test_selftest_with_a_failed_check_is_1(fine, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(CHECKS, "fp16", lambda lab: 1 / 0)
    assert main(["selftest", "--json", str(tmp_path / "report.json")]) == 1
    printed = capsys.readouterr()
    (line,) = [line for line in printed.out.splitlines() if line.startswith("fp16")]
    assert line.split(maxsplit=3)[1::2] == ["failed", "ZeroDivisionError: division by zero."]
    assert printed.out.splitlines()[-2].startswith(f"{len(CHECKS) - 1} passed, 1 failed, 0 skipped, in ")
    assert "fp16 failed" in printed.out.splitlines()[-1]
    assert json.loads((tmp_path / "report.json").read_text())["passed"] is False


def test_report_is_written_over_a_report_and_keeps_other_files(fine, capsys, tmp_path):
    mine, report = tmp_path / "config.json", tmp_path / "report.json"
    mine.write_text('{"mine": true}')
    assert main(["selftest", "--json", str(mine)]) == 2
    assert capsys.readouterr().err.startswith(f"mps-trainer: error: --json {mine} was not written by mps_trainer")
    assert mine.read_text() == '{"mine": true}'
    report.touch()  # empty, as tempfile creates it
    for _ in range(2):
        assert main(["selftest", "--json", str(report)]) == 0


@pytest.mark.parametrize("machine", ["linux_torch_missing", "m2_rosetta_torch_missing"])
def test_selftest_without_torch_is_2_and_one_line(machine, monkeypatch, capsys):
    monkeypatch.setattr(selftest, "gather_facts", lambda **settings: MACHINES[machine])
    assert main(["selftest"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("mps-trainer: error: Nothing can be trained here: torch is not installed")
    assert len(printed.err.splitlines()) == 1


@pytest.mark.integration
def test_selftest_names_a_simulated_device_and_sets_the_fallback_in_time(tmp_path, built):
    result = run("selftest", "--simulate", "--fallback", "--json", str(tmp_path / "report.json"))
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith("Checked: mps, SIMULATED; ")
    assert "runs on the CPU: PYTORCH_ENABLE_MPS_FALLBACK is on" in " ".join(result.stdout.split())
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["simulated"] is True
    assert {check["status"] for check in report["checks"]} == {"passed"}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_selftest_with_a_report_on_a_full_disk_is_2_after_the_table(fine, capsys):
    assert main(["selftest", "--json", "/dev/full"]) == 2
    printed = capsys.readouterr()
    assert f"{len(CHECKS)} passed, 0 failed" in printed.out
    assert "error: --json /dev/full was not written: No space left on device." in printed.err.splitlines()[-1]


def test_selftest_without_a_folder_for_temporary_files_is_2(on_cpu, capsys, monkeypatch):
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("mps_trainer.tools.selftest.run.tempfile.TemporaryDirectory", full)
    assert main(["selftest"]) == 2
    assert "error: There is no folder for temporary files" in capsys.readouterr().err
