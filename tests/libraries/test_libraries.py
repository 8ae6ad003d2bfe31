"""Trainers of TRL, sentence-transformers and SetFit train, evaluate and save as with transformers' own Trainer."""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import run_python
from tests.conftest import without_times

SCRIPT = Path(__file__).with_name("train.py")
TRAINERS = {
    "trl": ["sft", "sft_padding_free", "sft_lora", "dpo", "orpo", "kto", "reward", "grpo", "rloo"],
    "sentence_transformers": ["bi_encoder", "cross_encoder", "sparse"],
    "setfit": ["setfit"],
}
ON_MPS = ["sft", "bi_encoder"]
WITHOUT_PADDING = ["sft", "sft_lora", "bi_encoder"]  # without an argument, on the CPU
# On transformers' Trainer, an evaluation on a CPU with bfloat16 instructions ends the training of 4-bit weights.
ALONE = ["sft_4bit"] if importlib.util.find_spec("bitsandbytes") else []
IN_BF16 = ["sft", "grpo", "bi_encoder"]  # TRL's default
OWN_FILES = ("loop_state.json", "manifest.json")  # checkpoints have them beside transformers' files
missing = [name for name in (*TRAINERS, "datasets", "peft") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.extra,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}: pip install -e '.[libraries]'"),
]


def found(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "found.json").read_text())


def assert_same_figures(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compares losses, gradient norms and metrics of the run, the resumed run and the evaluation."""
    assert len(ours["logs"]) == len(theirs["logs"]) >= 6
    for part in ("logs", "resumed"):
        for mine, other in zip(without_times(ours[part]), without_times(theirs[part]), strict=True):
            if part == "resumed":
                # It is of the whole run here; transformers divides the steps since the checkpoint by all steps.
                mine.pop("train_loss", None), other.pop("train_loss", None)
            assert mine == pytest.approx(other, abs=1e-4)
    mine, other = without_times([ours["metrics"], theirs["metrics"]])
    assert mine == pytest.approx(other, abs=1e-4)


# This is one test for all trainers, so that xdist starts the two processes once.
def test_trainers_equal_those_on_transformers_own_trainer(tmp_path, devices, subtests):
    names = [name for each in TRAINERS.values() for name in each] + [f"{name}@bf16" for name in IN_BF16]
    on_mps = [*ON_MPS, *ALONE] if "mps" in devices else []
    first, second = tmp_path / "ours", tmp_path / "theirs"
    words = [first, *names, *ALONE, *(f"{name}@mps" for name in on_mps)], [second, *names, "--stock"]
    with ThreadPoolExecutor() as pool:
        ran = list(pool.map(lambda given: run_python(SCRIPT, *given), words))
    for each in ran:
        assert each.returncode == 0, each.stderr[-3000:]
    assert "mps_trainer: transformers.Trainer and TrainingArguments are now mps_trainer's" in ran[0].stderr
    for name in names:
        with subtests.test(name):
            ours, theirs = found(first / name), found(second / name)
            assert (ours["trainer"], theirs["trainer"]) == ("mps_trainer.trainer", "transformers.trainer")
            assert ours["is_instance"]
            assert ours["args_are_instance"]
            assert_same_figures(ours, theirs)
            assert (ours["left_out"] is not None) is (name.partition("@")[0] in WITHOUT_PADDING)
            assert ours["saved"] == theirs["saved"]
            assert [file for file in ours["checkpoint"] if file not in OWN_FILES] == theirs["checkpoint"]
    for name in ALONE:
        with subtests.test(f"{name}, resumed"):
            ours = found(first / name)
            whole, resumed = (
                [entry["loss"] for entry in ours[part] if "loss" in entry] for part in ("logs", "resumed")
            )
            assert resumed == whole
    for name in on_mps:
        with subtests.test(f"{name} on the simulated mps device"):
            there, here = found(first / f"{name}@mps"), found(first / name)
            assert (there["device"], here["device"]) == ("mps", "cpu")
            assert_same_figures(there, here)
            assert there["left_out"]
            assert there["saved"] == here["saved"]
            assert there["checkpoint"] == here["checkpoint"]


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
    report = tmp_path / "report.json"
    script = [str(SCRIPT), str(tmp_path / "runs"), f"{name}@default", *trainer]
    ended = run_python("-m", "mps_trainer", "check", "--json", report, *script)
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
