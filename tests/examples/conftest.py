"""The GLUE example, run in this process or in one of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "text-classification"
EMBEDDED = EXAMPLE / "embedded"
# Real GLUE data and a real pretrained model, which are not part of the project.
REAL = Path(os.environ.get("MPS_TRAINER_REAL_DATA", ROOT.parent / "shared"))

sys.path.insert(0, str(EXAMPLE))  # the script's own folder is where its modules are


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run_glue(out, capfd, monkeypatch):
    """Runs the script with the arguments given and `--output_dir`; gives its exit status, stdout and stderr."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # the same figures on every machine

    def run(*arguments: object, output_dir: bool = True) -> tuple[int, str, str]:
        import run_glue as script

        words = [str(argument) for argument in arguments]
        capfd.readouterr()
        try:
            status = script.main([*words, "--output_dir", str(out)] if output_dir else words)
        except SystemExit as end:  # argparse
            status = end.code
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run
