"""A script runs in this process: what it changes, and how it ends."""

import sys

import pytest

from mps_trainer.cli.script import run_script


@pytest.fixture
def ends(tmp_path, monkeypatch, capfd):
    """Runs a script with this text in this process: its exit status, and what it wrote."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def run_it(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        status = run_script(str(path), [])
        print("said by this program")
        print("reported by this program", file=sys.stderr)
        return status, *capfd.readouterr()

    return run_it


STREAMS = {
    "none": "sys.stdout = sys.stderr = None",
    "deleted": "del sys.stdout, sys.stderr",
    "replaced": "import io\nsys.stdout = sys.stderr = io.StringIO()",
    "not a stream": "sys.stdout = sys.stderr = 7",
}


@pytest.mark.parametrize("what", STREAMS.values(), ids=STREAMS)
def test_run_script_restores_the_streams(ends, what):
    status, out, err = ends(f"import sys\nprint('said by the script', flush=True)\n{what}\n")
    assert (status, err) == (0, "reported by this program\n")
    assert out == "said by the script\nsaid by this program\n"


@pytest.mark.parametrize("raises", ["GeneratorExit", "ValueError", "type('Own', (BaseException,), {})"])
def test_run_script_shows_the_traceback_of_the_script_alone(ends, raises):
    status, _, err = ends(f"raise {raises}('gone wrong')\n")
    assert status == 1
    assert err.count('File "') == 1
    assert "train.py" in err
    assert "gone wrong" in err
    assert "mps_trainer" not in err
