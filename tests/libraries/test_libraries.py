"""Trainers of TRL, sentence-transformers and SetFit train, evaluate and save as with transformers' own Trainer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import HUNG_AFTER

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("train.py")
TRAINERS = {
    "trl": ["sft", "sft_lora", "dpo", "orpo", "kto", "reward", "grpo", "rloo"],
    "sentence_transformers": ["bi_encoder", "cross_encoder", "sparse"],
    "setfit": ["setfit"],
}
# measured, so different each time
TIMES = ("runtime", "per_second", "step_time")


def trained(name: str, folder: Path, *flags: str) -> dict[str, Any]:
    folder.mkdir()
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), name, str(folder), *flags]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert ended.returncode == 0, ended.stderr
    return {**json.loads((folder / "found.json").read_text()), "stderr": ended.stderr}


def numbers(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in log.items() if not any(t in key for t in TIMES)} for log in logs]


@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, names in TRAINERS.items() for name in names]
)
def test_it_trains_as_with_transformers_own_trainer(library, name, tmp_path):
    for needed in (library, "datasets", *(["peft"] if name == "sft_lora" else [])):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install -e '.[libraries]'")
    ours, theirs = trained(name, tmp_path / "ours"), trained(name, tmp_path / "theirs", "--stock")
    assert (ours["trainer"], theirs["trainer"]) == ("mps_trainer.trainer", "transformers.trainer")
    assert ours["is_instance"]
    assert ours["args_are_instance"]
    assert "mps_trainer: transformers.Trainer and TrainingArguments are now mps_trainer's" in ours["stderr"]
    assert len(ours["logs"]) == len(theirs["logs"]) >= 6
    for mine, other in zip(numbers(ours["logs"]), numbers(theirs["logs"]), strict=True):
        assert mine == pytest.approx(other, abs=1e-4)
    for mine, other in zip(numbers(ours["resumed"]), numbers(theirs["resumed"]), strict=True):
        # of the whole run here, and of the steps since the checkpoint with transformers, divided by all steps
        mine.pop("train_loss", None), other.pop("train_loss", None)
        assert mine == pytest.approx(other, abs=1e-4)
    assert numbers([ours["metrics"]]) == [pytest.approx(each, abs=1e-4) for each in numbers([theirs["metrics"]])]
    assert ours["saved"] == theirs["saved"]
    assert [file for file in ours["checkpoint"] if file != "manifest.json"] == theirs["checkpoint"]
