"""The command line, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mps_trainer import DeviceRequest, MachineFacts, __version__, gather_facts, resolve


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    launcher = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    variables = {name: value for name, value in os.environ.items() if name not in launcher}
    command = [sys.executable, "-m", "mps_trainer", *arguments]
    return subprocess.run(command, env={**variables, **environ}, capture_output=True, text=True, timeout=120)


def test_doctor_prints_the_decision_for_this_machine():
    result = run("doctor")
    decision = resolve(DeviceRequest(), gather_facts())
    assert result.stdout.splitlines()[0].startswith(f"Training runs on {decision.name}: ")
    assert result.returncode == int(any(other.repairable for other in decision.rejected))
    assert result.stderr == ""


def test_doctor_prints_decision_and_facts_as_json():
    result = run("doctor", "--json", ACCELERATE_USE_CPU="true")
    printed = json.loads(result.stdout)
    facts = MachineFacts.from_dict(printed["facts"])
    assert facts.environment["ACCELERATE_USE_CPU"] == "true"
    assert printed["decision"] == json.loads(json.dumps(resolve(DeviceRequest(), facts).to_dict()))
    assert printed["decision"]["device"] == "cpu"


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m mps_trainer doctor --json | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("{\n", "")


def test_a_malformed_variable_is_one_line_on_stderr():
    result = run("doctor", WORLD_SIZE="two")
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "WORLD_SIZE" in result.stderr


def test_a_missing_torch_is_one_line_on_stderr_and_json_still_has_the_facts(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for this test')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path[1:], os.getcwd()])
    for arguments in (("doctor",), ("doctor", "--json")):
        result = run(*arguments, PYTHONPATH=path)
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1
        assert "no torch for this test" in result.stderr
    printed = json.loads(result.stdout)
    assert printed["decision"] is None
    assert printed["facts"]["torch_error"] == "ImportError: no torch for this test"


def test_version():
    result = run("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"mps-trainer {__version__}")


@pytest.mark.parametrize(
    ("machine", "status"),
    [
        (MachineFacts(torch_version="2.9.0"), 0),
        (MachineFacts(system="Darwin", machine="arm64", os_version="15.1", torch_version="2.9.0"), 1),
        (MachineFacts(system="Darwin", machine="x86_64", os_version="13.6", torch_version="2.2.2"), 0),
    ],
)
def test_the_exit_status_says_whether_the_best_device_is_usable(machine, status, monkeypatch, capsys):
    from mps_trainer import cli

    monkeypatch.setattr(cli.doctor, "gather_facts", lambda: machine)
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().out.startswith("Training runs on cpu")
