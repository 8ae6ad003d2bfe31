"""A process of its own for one measurement: `python -m benchmarks.worker MODULE SETTINGS.json RESULT.json`.

Calls the module's `measure(**settings)` and writes what it returns.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STARTED = "BENCHMARK_STARTED"  # holds time.time() of the moment when a measured process was begun


class MeasurementFailedError(RuntimeError):
    """A measured process ended with an error; the message has the end of its output."""


def measure_in_process(module: str, **settings: Any) -> dict[str, Any]:
    """What `benchmarks.<module>.measure(**settings)` returns in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        given, result = Path(folder, "settings.json"), Path(folder, "result.json")
        given.write_text(json.dumps({**settings, "folder": folder}), encoding="utf-8")
        run_process(["-m", "benchmarks.worker", module, str(given), str(result)])
        return json.loads(result.read_text(encoding="utf-8"))


def run_process(arguments: list[str]) -> float:
    """The seconds that `python ARGUMENTS` takes, from before it begins to after it has ended.

    Raises MeasurementFailedError where it fails.
    """
    # A library that asks its hub waits for the network.
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **offline, "PYTHONPATH": path, STARTED: repr(time.time())}
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    seconds = time.perf_counter() - start
    if process.returncode != 0:
        last = next((line for line in reversed(process.stdout.splitlines()) if line.strip()), "no output")
        end = process.stdout[-3000:]
        raise MeasurementFailedError(f"{last} (exit status {process.returncode} of {' '.join(arguments)})\n{end}")
    return seconds


if __name__ == "__main__":
    name, given, result = sys.argv[1:]
    settings = json.loads(Path(given).read_text(encoding="utf-8"))
    measured = importlib.import_module(f"benchmarks.{name}").measure(**settings)
    Path(result).write_text(json.dumps(measured), encoding="utf-8")
