"""`mps-trainer doctor`, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from mps_trainer import DeviceRequest, MachineFacts, __version__, cli, gather_facts, resolve
from tests import HUNG_AFTER
from tests.devices.machines import MACHINES


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    launcher = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    variables = {name: value for name, value in os.environ.items() if name not in launcher}
    command = [sys.executable, "-m", "mps_trainer", *arguments]
    return subprocess.run(command, env={**variables, **environ}, capture_output=True, text=True, timeout=HUNG_AFTER)


def lines_with(label: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if line.split()[:1] == [label]]


@pytest.mark.integration
def test_doctor_prints_the_decision_for_this_machine():
    result = run("doctor")
    decision = resolve(DeviceRequest(), gather_facts())
    (device,) = lines_with("device", result.stdout)
    assert device.split()[1] == f"{decision.name}:"
    assert result.returncode == int(result.stdout.count(" error: ") > 0)
    assert result.stderr == ""


@pytest.mark.integration
def test_doctor_prints_decision_findings_and_facts_as_json():
    code = (
        "import sys\nfrom mps_trainer import cli\ncli.main(['doctor', '--json'])\n"
        "print('transformers' in sys.modules)  # it takes seconds\n"
    )
    environ = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=HUNG_AFTER
    )
    *lines, imported = result.stdout.splitlines()
    assert imported == "False"
    printed = json.loads("\n".join(lines))
    facts = MachineFacts.from_dict(printed["facts"])
    assert facts.environment["ACCELERATE_USE_CPU"] == "true"
    assert facts.memory_bytes > 0
    assert facts.packages["torch"]
    assert printed["decision"] == json.loads(json.dumps(resolve(DeviceRequest(), facts).to_dict()))
    assert printed["decision"]["device"] == "cpu"
    assert printed["findings"] == cli.doctor.report(facts)["findings"]
    assert printed["mps_trainer"] == __version__


@pytest.mark.integration
def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m mps_trainer doctor --json | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert (result.stdout, result.stderr) == ("{\n", "")


@pytest.mark.integration
def test_a_malformed_variable_is_one_line_on_stderr():
    result = run("doctor", WORLD_SIZE="two")
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "WORLD_SIZE" in result.stderr


@pytest.mark.integration
def test_a_broken_torch_is_a_finding_like_any_other(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for this test')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path[1:], os.getcwd()])
    plain, as_json = run("doctor", PYTHONPATH=path), run("doctor", "--json", PYTHONPATH=path)
    assert (plain.returncode, plain.stderr) == (as_json.returncode, as_json.stderr) == (1, "")
    assert plain.stdout.startswith("Do this first: reinstall torch: ")
    assert "no torch for this test" in plain.stdout
    printed = json.loads(as_json.stdout)
    assert printed["decision"] is None
    assert printed["refusal"].startswith("Nothing can be trained here")
    assert printed["facts"]["torch_error"] == "ImportError: no torch for this test"


@pytest.mark.integration
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
    monkeypatch.setattr(cli.doctor, "gather_all_facts", lambda: machine)
    assert cli.main(["doctor"]) == status
    assert "\ndevice     cpu: " in capsys.readouterr().out


# --- the facts of another machine --------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Writes a file, and answers from it; what is asked of this machine is an error."""
    monkeypatch.setattr(cli.doctor, "gather_all_facts", lambda: pytest.fail("this machine was asked"))
    path = tmp_path / "facts.json"

    def answer(content: object, *arguments: str) -> int:
        path.write_text(json.dumps(content))
        return cli.main(["doctor", "--facts", str(path), *arguments])

    return answer


def test_doctor_answers_for_a_recorded_machine(recorded, capsys):
    facts = MACHINES["m2_rosetta_torch_missing"]
    assert recorded(cli.doctor.report(facts)) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("Do this first: install a native arm64 Python")
    assert f"facts.json, written by mps_trainer {__version__}" in " ".join(printed.split())
    assert recorded(facts.to_dict(), "--json") == 1
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(cli.doctor.report(facts)))


def test_a_recorded_answer_is_the_one_that_was_given(recorded, capsys):
    for machine in ("m3_macos_15", "m1_macos_13_torch_2.8", "linux_8_cuda"):
        report = cli.doctor.report(MACHINES[machine])
        assert recorded(report, "--json") == cli.doctor.status(MACHINES[machine])
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(report))


def test_what_a_newer_version_knows_is_left_out_and_named(recorded, capsys):
    facts = {**MACHINES["m3_macos_15"].to_dict(), "neural_engine": True, "fans": 2}
    assert recorded({"mps_trainer": "99.1", "facts": facts, "weather": "fine"}) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f'written by mps_trainer 99.1; left out, unknown to {__version__}: "neural_engine", "fans"' in printed


def test_what_an_older_version_did_not_know_is_unknown(recorded, capsys):
    old = {"system": "Darwin", "machine": "arm64", "os_version": "26.3", "torch_version": "2.13.0", "mps_built": True}
    assert recorded({"decision": None, "facts": old}) == 1
    assert capsys.readouterr().out.startswith("Do this first: run outside any sandbox")


def test_what_a_terminal_would_obey_is_written_out(recorded, capsys):
    facts = replace(MACHINES["m2_rosetta_torch_missing"], python_executable="\x1b[2Jpython\n3", chip="\x07")
    recorded(facts.to_dict())
    assert capsys.readouterr().out.replace("\n", "").isprintable()


# --- help --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["doctor", "env"])
def test_help_is_complete_and_fits_a_screen(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    printed = capsys.readouterr().out
    assert end.value.code == 0
    assert len(printed.splitlines()) <= 24
    assert max(map(len, printed.splitlines())) <= 80
    assert "exit status" in printed


@pytest.mark.integration
def test_help_imports_nothing_that_takes_time():
    code = (
        "import sys\n"
        "from mps_trainer.cli import main\n"
        "for arguments in (['doctor', '--help'], ['env', '--help'], ['--help']):\n"
        "    try:\n"
        "        main(arguments)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HUNG_AFTER)
    assert result.stdout.splitlines()[-1] == "[]"
