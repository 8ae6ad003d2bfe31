"""`mps-trainer check` traces trainers of other libraries, on this Trainer and on transformers', in their precision."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import HUNG_AFTER

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("train.py")


@pytest.mark.parametrize(
    ("library", "name", "trainer"),
    [
        ("trl", "sft", []),
        ("trl", "sft", ["--stock"]),
        ("sentence_transformers", "bi_encoder", ["--stock"]),
        ("setfit", "setfit", []),
    ],
)
def test_check_traces_trainer_of_library(library, name, trainer, tmp_path):
    for needed in (library, "datasets"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install -e '.[libraries]'")
    report = tmp_path / "report.json"
    script = [str(SCRIPT), str(tmp_path / "runs"), f"{name}@default", *trainer]
    command = [sys.executable, "-m", "mps_trainer", "check", "--json", str(report), *script]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert ended.returncode == 0, ended.stderr
    assert "Keep the value on the device" not in ended.stdout  # the waits are the libraries'
    found = json.loads(report.read_text())
    assert {use["phase"] for use in found["operators"]} >= {"forward", "backward", "optimizer", "evaluation"}
    expected = {library, "transformers"} | ({"accelerate"} if trainer else set())  # stock's Trainer copies with it
    assert {read["where"]["library"] for read in found["blocking_reads"]} <= expected
    if name == "sft":
        assert "inside trl" in ended.stdout
    if trainer:
        assert "inside transformers" in ended.stdout
        assert any(read["phase"] == "logging" for read in found["blocking_reads"])
    assert not list(tmp_path.rglob("found.json"))
    assert not list(tmp_path.rglob("checkpoint-*"))
