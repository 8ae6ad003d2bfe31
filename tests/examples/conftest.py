"""Fixtures that run the scripts of the examples in this process."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "text-classification"
EMBEDDED = EXAMPLE / "embedded"
# This folder has real GLUE data and a real pretrained model, which are not part of the project.
REAL = Path(os.environ.get("MPS_TRAINER_REAL_DATA", ROOT.parent / "shared"))

IMAGES = ROOT / "examples" / "image-classification"
LANGUAGE = ROOT / "examples" / "language-modeling"
FOLDERS = (EXAMPLE, IMAGES, LANGUAGE, ROOT / "examples" / "sentence-embeddings")
for folder in FOLDERS:
    sys.path.insert(0, str(folder))  # a script imports modules from its own folder


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run_script(out, capfd):
    """Runs a script of the examples with arguments and `--output_dir`. Returns status, stdout and stderr."""

    def run(name: str, *arguments: object, output_dir: bool = True) -> tuple[int, str, str]:
        script = importlib.import_module(name)
        words = [str(argument) for argument in arguments]
        capfd.readouterr()
        try:
            status = script.main([*words, "--output_dir", str(out)] if output_dir else words)
        except SystemExit as end:  # argparse
            status = end.code
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def run_glue(run_script, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # the same figures on every machine
    return functools.partial(run_script, "run_glue")


@pytest.fixture
def run_cv(run_script, device, monkeypatch):
    _on(device, monkeypatch)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    return functools.partial(run_script, "cv_example")


@pytest.fixture
def run_lora(run_script, device, monkeypatch):
    _on(device, monkeypatch)
    return functools.partial(run_script, "run_lora")


def _on(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    else:
        monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)


def read(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())
