"""Benchmarks as they are started from a shell, in their quick form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(tmp_path):
    """Runs `python -m benchmarks` with a name and further arguments; the result's JSON and the page of results."""

    def run(name: str, *arguments: str, environment: dict[str, str] | None = None) -> tuple[dict[str, Any], str]:
        command = [sys.executable, "-m", "benchmarks", name, "--quick", "--output", str(tmp_path), *arguments]
        threads = {"OMP_NUM_THREADS": "1", **(environment or {})}
        process = subprocess.run(command, cwd=ROOT, env={**os.environ, **threads}, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr[-3000:]
        result = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        return result, (tmp_path / "README.md").read_text(encoding="utf-8")

    return run
