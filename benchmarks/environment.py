"""Describes the machine and versions of a benchmark."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from .worker import ROOT, measure_in_process

PACKAGES = (
    *("torch", "transformers", "accelerate", "lightning", "datasets", "tokenizers", "numpy", "matplotlib"),
    *("trl", "peft", "sentence-transformers"),
)


def describe() -> dict[str, Any]:
    """Returns date, versions, machine and command for the head of a result."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks", *map(without_folder, sys.argv[1:])]),
        "versions": versions(),
        "machine": {
            **{"system": platform.system(), "release": platform.release(), "architecture": platform.machine()},
            **{
                "processor": processor(),
                "cores": os.cpu_count(),
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            },
            **measure_in_process("environment"),
            "load": os.getloadavg()[0],  # the last minute's; a quiet machine is near 0
        },
    }


def without_folder(word: str) -> str:
    """Returns a word of the command; of an absolute path its last name alone, because others keep it elsewhere."""
    flag, equals, path = word.rpartition("=")
    return flag + equals + os.path.basename(os.path.normpath(path)) if os.path.isabs(path) else word


def measure(folder: str) -> dict[str, Any]:
    """Returns facts that need torch."""
    import psutil
    import torch

    return {"threads": torch.get_num_threads(), "memory_gib": round(psutil.virtual_memory().total / 2**30, 1)}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "mps_trainer": own_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def own_version() -> str:
    """Returns the release, and the commit if there is one."""
    from mps_trainer.version import __version__

    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return f"{__version__} ({git.stdout.strip()})" if git.returncode == 0 else __version__


def processor() -> str:
    """Returns the processor's name from the system."""
    if platform.system() == "Darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        return asked.stdout.strip()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
