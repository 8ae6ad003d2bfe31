"""Tells how to install a missing package: an optional one, or this one with its requirements."""

from __future__ import annotations

import shlex
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# For each optional module, the extra of setup.cfg that installs it, at versions that work.
EXTRAS = {
    "bitsandbytes": "quantization",
    "datasets": "examples",
    "evaluate": "examples",
    "lightning": "benchmarks",
    "matplotlib": "benchmarks",
    "mlx": "several-macs",
    "ninja": "simulator",
    "optuna": "search",
    "peft": "peft",
    "PIL": "examples",
    "scipy": "examples",
    "sentence_transformers": "libraries",
    "setfit": "libraries",
    "sklearn": "examples",
    "torchao": "optimizers",
    "mlx_lm": "libraries",
    "trl": "libraries",
}


def how_to_install(module: str | None = None, package: Path = PACKAGE) -> str:
    """Returns a sentence with the command that installs a missing module.

    Args:
        module: its absolute name, as an ImportError has it.
        package: the folder of this package.
    """
    if extra := EXTRAS.get((module or "").partition(".")[0]):
        return f"Run: python -m pip install 'mps_trainer[{extra}]'"
    is_clone = (package.parent / "setup.cfg").is_file()
    what = f"-e {shlex.quote(str(package.parent))}" if is_clone else "mps_trainer"
    return f"Install what mps_trainer needs, in a virtual environment: python -m pip install {what}"
