"""An editable install as README makes it, seen by type checkers from a script in another folder."""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests import HUNG_AFTER
from tests.release.test_wheel import BUILD, run

pytestmark = pytest.mark.integration

SCRIPT = """\
from mps_trainer import Trainer, TrainingArguments

rate: float = TrainingArguments(output_dir="out").learning_rate
rates: str = Trainer.get_learning_rates
"""


@pytest.fixture(scope="module")
def environment(checkout) -> Path:
    """Returns the Python of a new environment with the editable install alone: torch is not needed for types."""
    run(sys.executable, "-c", BUILD.replace("sys.argv[2]", "sys.argv[2], {}"), "build_editable", "..", cwd=checkout)
    (wheel,) = checkout.parent.glob("*.whl")
    folder = checkout.parent / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return python


@pytest.mark.parametrize(
    ("checker", "options", "count"),
    [
        ("mypy", ["--no-incremental", "--python-executable"], "Found 1 error"),
        ("pyright", ["--pythonpath"], "1 error,"),
    ],
)
def test_a_type_checker_knows_the_types_of_an_editable_install(checker, options, count, environment, tmp_path):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed; it is in the extra dev")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", checker, *options, str(environment), "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HUNG_AFTER)
    (error,) = (line for line in done.stdout.splitlines() if "error: " in line)
    assert "script.py:4:" in error
    assert "list[float]" in done.stdout
    assert count in done.stdout
