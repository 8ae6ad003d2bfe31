"""`mps-trainer doctor`, as a user runs it."""

import functools
import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from mps_trainer import DeviceRequest, MachineFacts, __version__, cli, resolve
from tests import HUNG_AFTER, run_python
from tests.devices.machines import MACHINES

run = functools.partial(run_python, "-m", "mps_trainer")


@pytest.mark.integration
def test_doctor_prints_decision_findings_and_facts_as_json():
    code = (
        "import sys\nfrom mps_trainer import cli\ncli.main(['doctor', '--json'])\n"
        "print('transformers' in sys.modules)  # it takes seconds\n"
    )
    result = run_python("-c", code, ACCELERATE_USE_CPU="true")
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
def test_doctor_piped_to_head_is_no_error():
    command = f"{sys.executable} -m mps_trainer doctor --json | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert (result.stdout, result.stderr) == ("{\n", "")


@pytest.mark.integration
def test_doctor_reports_a_broken_torch_as_a_finding(tmp_path):
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


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Writes a file, and answers from it; what is asked of this machine is an error."""
    monkeypatch.setattr(cli.doctor, "gather_facts", lambda: pytest.fail("this machine was asked"))
    path = tmp_path / "facts.json"

    def answer(content: object, *arguments: str) -> int:
        path.write_text(json.dumps(content))
        return cli.main(["doctor", "--facts", str(path), *arguments])

    return answer


def test_doctor_repeats_the_answer_of_a_recorded_machine(recorded, capsys):
    assert recorded(cli.doctor.report(MACHINES["m2_rosetta_torch_missing"])) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("Do this first: install a native arm64 Python")
    assert f"facts.json, written by mps_trainer {__version__}" in " ".join(printed.split())
    for machine in ("m2_rosetta_torch_missing", "m3_macos_15", "m1_macos_13_torch_2.8", "linux_8_cuda"):
        report = cli.doctor.report(MACHINES[machine])
        assert recorded(report, "--json") == cli.doctor.status(MACHINES[machine])
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(report))


def test_doctor_writes_out_escape_sequences(recorded, capsys):
    facts = replace(MACHINES["m2_rosetta_torch_missing"], python_executable="\x1b[2Jpython\n3", chip="\x07")
    recorded(facts.to_dict())
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_a_terminal_without_a_character_shows_its_number(recorded, monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert recorded(replace(MACHINES["m3_macos_15"], python_executable="/Users/jürgen/python").to_dict()) == 0
    assert b"/Users/j\\xfcrgen/python" in terminal.buffer.getvalue()
