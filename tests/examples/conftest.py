"""Fixtures that run the scripts of the examples."""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

from tests import ROOT

EXAMPLE = ROOT / "examples" / "text-classification"
EMBEDDED = EXAMPLE / "embedded"
# This folder has real GLUE data and a real pretrained model, which are not part of the project.
REAL = Path(os.environ.get("MPS_TRAINER_REAL_DATA", ROOT.parent / "shared"))

FOLDERS = sorted(path for path in (ROOT / "examples").iterdir() if (path / "README.md").exists())
sys.path.insert(0, str(EXAMPLE))  # run_glue


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run_glue(out, capfd, monkeypatch):
    """Runs run_glue.py with arguments and `--output_dir`. Returns status, stdout and stderr."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # the same figures on every machine

    def run(*arguments: object) -> tuple[int, str, str]:
        words = [str(argument) for argument in arguments]
        capfd.readouterr()
        status = importlib.import_module("run_glue").main([*words, "--output_dir", str(out)])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run


def read(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())
