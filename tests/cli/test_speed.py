"""`mps-trainer speed`, as a user runs it."""

import json
import os
from unittest import mock

import pytest

from mps_trainer.cli import main, speed
from mps_trainer.tools.speed import WORKLOADS, Measured, SpeedReport
from mps_trainer.tools.speed import run as measuring
from tests.devices.machines import MACHINES

from .test_doctor import run


@pytest.fixture
def measured(monkeypatch):
    """Replaces the measurements; `measured["ours"]` is what this package's side gets."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    found = {"ours": Measured((0.1, 0.1))}

    def measure(workload, is_real, plan, decision, folder, tell):
        return measuring.WorkloadResult(
            workload.name, workload.sizes, workload.is_training, "torch", found["ours"], Measured((0.2, 0.2))
        )

    monkeypatch.setattr(measuring, "_measure", measure)
    return found


def test_speed_prints_a_table_and_writes_a_report(measured, capsys, tmp_path):
    path = tmp_path / "speed.json"
    for words, count in ((["--quick"], len(WORKLOADS) - 1), ([], len(WORKLOADS))):
        assert main(["speed", *words, "--json", str(path)]) == 0
        printed = capsys.readouterr()
        assert printed.out.startswith(f"### mps-trainer speed{' --quick' * bool(words)}: ")
        assert printed.err.startswith("This takes about ")
        assert f"[{count}/{count}] a copy to the device ..." in printed.err
        report = SpeedReport.from_dict(json.loads(path.read_text()))
        assert len(report.workloads) == count
        assert report.quick is bool(words)
    assert main(["doctor", "--facts", str(path)]) in (0, 1)


def test_speed_with_a_workload_that_failed_is_1(measured, capsys):
    measured["ours"] = Measured(failure="TypeError: no bf16")
    assert main(["speed", "--quick"]) == 1
    assert "mps_trainer: TypeError: no bf16." in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--rounds", "3"], ["--json"], ["--json", "gone/speed.json"], ["more"]])
def test_wrong_flags_and_paths_are_2_and_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["speed", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("mps-trainer: error: ")


def test_another_file_is_kept(capsys, tmp_path):
    mine = tmp_path / "config.json"
    mine.write_text('{"mine": true}')
    assert main(["speed", "--json", str(mine)]) == 2
    assert "was not written by mps_trainer" in capsys.readouterr().err
    assert mine.read_text() == '{"mine": true}'


def test_a_run_that_fails_keeps_the_report_before(measured, capsys, tmp_path, monkeypatch):
    path = tmp_path / "speed.json"
    assert main(["speed", "--quick", "--json", str(path)]) == 0
    path.chmod(0o600)
    assert main(["speed", "--quick", "--json", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_text()
    with monkeypatch.context() as full:
        full.setattr("os.replace", mock.Mock(side_effect=OSError(28, "No space left on device")))
        assert main(["speed", "--quick", "--json", str(path)]) == 2
    assert f"error: --json {path} was not written: No space left" in capsys.readouterr().err
    with monkeypatch.context() as stopped:
        stopped.setattr(measuring, "_measure", mock.Mock(side_effect=KeyboardInterrupt))
        assert main(["speed", "--quick", "--json", str(path)]) == 130
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["speed.json"]


def test_a_report_that_is_a_link_stays_one(measured, tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "speed.json")
    for _ in range(2):
        assert main(["speed", "--quick", "--json", str(tmp_path / "link.json")]) == 0
    assert (tmp_path / "link.json").is_symlink()
    assert SpeedReport.from_dict(json.loads((tmp_path / "speed.json").read_text())).passed


def test_speed_without_torch_is_2_and_one_line(monkeypatch, capsys):
    monkeypatch.setattr(speed, "gather_facts", lambda **settings: MACHINES["linux_torch_missing"])
    assert main(["speed"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("mps-trainer: error: Nothing can be trained here: torch is not")


@pytest.mark.integration
@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_quick_measures_everything(device, tmp_path, request):
    words = ["--simulate"] if device == "mps" else []
    if words:
        request.getfixturevalue("built")
    variables = {} if words else {"ACCELERATE_USE_CPU": "true"}
    path = tmp_path / "speed.json"
    result = run("speed", "--quick", "--json", str(path), *words, **variables)
    assert result.returncode == 0, result.stderr
    report = SpeedReport.from_dict(json.loads(path.read_text()))
    assert result.stdout == f"{report}\n"
    assert (report.device, report.simulated, report.smaller) == (device, device == "mps", True)
    assert [each.name for each in report.workloads] == [each.name for each in WORKLOADS if each.in_quick]
    for each in report.workloads:
        sides = [side for side in (each.ours, each.theirs) if side is not None]
        assert [len(side.seconds) for side in sides] == [2] * len(sides)
        # no published figure stands beside smaller sizes
        sizes = next(workload.sizes for workload in WORKLOADS if workload.name == each.name)
        assert each.published is None or each.sizes == sizes
    if report.simulated:
        assert {each.published for each in report.workloads} == {None}
        assert "simulated" in report.unjudged[0]
        assert "rounds)" not in result.stdout
