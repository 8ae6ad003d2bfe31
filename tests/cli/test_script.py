"""A script runs in this process: what it changes, and how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mps_trainer.cli.script import run_script
from tests import HUNG_AFTER


@pytest.fixture
def ends(tmp_path, monkeypatch, capfd):
    """Runs a script with this text in this process: its exit status, and what it wrote."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def run_it(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", open(1, "w", closefd=False))  # noqa: SIM115 - a script may detach it
            patch.setattr(sys, "stderr", open(2, "w", closefd=False))  # noqa: SIM115
            status = run_script(str(path), [])
            print("said by this program", flush=True)
            print("reported by this program", file=sys.stderr, flush=True)
        return status, *capfd.readouterr()

    return run_it


STREAMS = {
    "closed": "sys.stdout.close()\nsys.stderr.close()",
    "none": "sys.stdout = sys.stderr = None",
    "deleted": "del sys.stdout, sys.stderr",
    "replaced": "import io\nsys.stdout = sys.stderr = io.StringIO()",
    "not a stream": "sys.stdout = sys.stderr = 7",
    "closed in the system": "import os\nos.close(1)\nos.close(2)",
    "detached": "sys.stdout.detach()\nsys.stderr.detach()",
}


@pytest.mark.parametrize("what", STREAMS.values(), ids=STREAMS)
def test_what_a_script_does_to_its_streams_is_over_when_it_ends(ends, what):
    status, out, err = ends(f"import sys\nprint('said by the script', flush=True)\n{what}\n")
    assert (status, err) == (0, "reported by this program\n")
    assert out == "said by the script\nsaid by this program\n"


@pytest.mark.parametrize(
    "raises",
    ["BaseException", "GeneratorExit", "ValueError", "type('Own', (BaseException,), {})"],
)
@pytest.mark.parametrize("before", ["", "sys.stderr.close()\n"], ids=["", "without stderr"])
def test_whatever_a_script_raises_is_a_traceback_of_its_own(ends, raises, before):
    status, _, err = ends(f"import sys\n{before}raise {raises}('gone wrong')\n")
    assert status == 1
    assert err.count('File "') == 1
    assert "train.py" in err
    assert "gone wrong" in err
    assert "mps_trainer" not in err


@pytest.mark.integration
@pytest.mark.parametrize("command", ["check", "simulate"])
def test_a_bare_base_exception_ends_a_command_with_the_scripts_traceback(tmp_path, command):
    (tmp_path / "train.py").write_text("raise BaseException('gone wrong')\n")
    words = [sys.executable, "-m", "mps_trainer", command, str(tmp_path / "train.py")]
    result = subprocess.run(words, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert result.returncode in (1, 2)
    assert result.stderr.count('File "') == 1
    assert "BaseException: gone wrong" in result.stderr


@pytest.mark.integration
def test_a_simulated_script_that_closes_stdout_has_its_report(tmp_path):
    (tmp_path / "train.py").write_text("import sys\nprint('said')\nsys.stdout.close()\n")
    words = [sys.executable, "-m", "mps_trainer", "simulate", str(tmp_path / "train.py")]
    result = subprocess.run(words, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert (result.returncode, result.stdout) == (0, "said\n")
    assert result.stderr.startswith("On the simulated mps device (torch ")
