"""Runs commands on scripts in this process."""

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from mps_trainer import cli

Ended = subprocess.CompletedProcess


@pytest.fixture
def run_on(tmp_path, monkeypatch, capfd) -> Callable[..., Ended]:
    """`run_on("check", text, *options)` runs the command on a script with this text; `after` are its arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # the commands set it; it is taken back
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def run(command: str, text: str, *options: str, after: Sequence[str] = ()) -> Ended:
        (tmp_path / "train.py").write_text(text)
        capfd.readouterr()
        return Ended(command, cli.main([command, *options, "train.py", *after]), *capfd.readouterr())

    return run


@pytest.fixture(autouse=True)
def command(monkeypatch):
    """Restores the variable that `run` and `launch` set in this process."""
    monkeypatch.setenv("MPS_TRAINER_COMMAND", "")
    monkeypatch.delenv("MPS_TRAINER_COMMAND")


@pytest.fixture
def no_settings(tmp_path, monkeypatch):
    for name in ("ACCELERATE_MIXED_PRECISION", "MPS_TRAINER_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
