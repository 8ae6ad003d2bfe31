"""A process of its own for one measurement: `python -m benchmarks.worker MODULE SETTINGS.json RESULT.json`.

Calls the module's `measure(**settings)` and writes what it returns.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STARTED = "BENCHMARK_STARTED"  # holds time.time() of the moment when a measured process was begun


class MeasurementFailedError(RuntimeError):
    """A measured process ended with an error; the message has the end of its output."""


def measure_in_process(module: str, **settings: Any) -> dict[str, Any]:
    """Runs `benchmarks.<module>.measure(**settings)` in a fresh process and returns its result."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        return _measured(folder, "result", {}, module, {**settings, "folder": folder})


def measure_in_processes(count: int, module: str, **settings: Any) -> list[dict[str, Any]]:
    """The same of `count` processes at once, which find each other by the variables that torchrun sets.

    They share a folder. Each has one thread, unless OMP_NUM_THREADS says otherwise, as under torchrun.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    group = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    group = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **group}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, ThreadPoolExecutor(count) as pool:

        def one(rank: int) -> dict[str, Any]:
            place = {name: str(value) for name, value in {**group, "RANK": rank, "LOCAL_RANK": rank}.items()}
            return _measured(folder, f"result-{rank}", place, module, {**settings, "folder": folder})

        return list(pool.map(one, range(count)))


def _measured(folder: str, name: str, variables: dict[str, str], module: str, settings: dict[str, Any]) -> Any:
    given, result = Path(folder, f"{name}-settings.json"), Path(folder, f"{name}.json")
    given.write_text(json.dumps(settings), encoding="utf-8")
    run_process(["-m", "benchmarks.worker", module, str(given), str(result)], variables)
    return json.loads(result.read_text(encoding="utf-8"))


def run_process(arguments: list[str], variables: dict[str, str] | None = None) -> float:
    """The seconds that `python ARGUMENTS` takes, from before it begins to after it has ended.

    Args:
        variables: of its environment, over those of this one.

    Raises MeasurementFailedError where it fails.
    """
    # A library that asks its hub waits for the network.
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **offline, "PYTHONPATH": path, STARTED: repr(time.time()), **(variables or {})}
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
