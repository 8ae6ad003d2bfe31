"""Benchmarks in their quick form, as they are started from a shell, or in this process."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environment, memory, overhead, simulated
from benchmarks.__main__ import main
from tests import ROOT, run_python


@pytest.fixture
def benchmarks(tmp_path):
    """Runs `python -m benchmarks` with a name and further arguments; the result's JSON and the page of results."""

    def run(name: str, *arguments: str) -> tuple[dict[str, Any], str]:
        process = run_python("-m", "benchmarks", *words(name, tmp_path, arguments), cwd=ROOT)
        assert process.returncode == 0, process.stderr[-3000:]
        return written(tmp_path, name)

    return run


@pytest.fixture
def benchmarks_here(tmp_path, monkeypatch):
    """The same, but everything is measured in this process: starting one takes longer than what it measures."""

    def measure(module: str, **settings: Any) -> dict[str, Any]:
        folder = tmp_path / "measured"
        folder.mkdir(exist_ok=True)
        return importlib.import_module(f"benchmarks.{module}").measure(**settings, folder=str(folder))

    for module in (environment, memory, overhead, simulated):
        monkeypatch.setattr(module, "measure_in_process", measure)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(name: str, *arguments: str) -> tuple[dict[str, Any], str]:
        given = words(name, tmp_path, arguments)
        monkeypatch.setattr(sys, "argv", ["benchmarks", *given])
        assert main(given) == 0
        return written(tmp_path, name)

    return run


def words(name: str, folder: Path, arguments: tuple[str, ...]) -> list[str]:
    return [name, "--quick", "--output", str(folder), *arguments]


def written(folder: Path, name: str) -> tuple[dict[str, Any], str]:
    result = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return result, (folder / "README.md").read_text(encoding="utf-8")
