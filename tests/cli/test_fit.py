"""`mps-trainer fit`, as a user runs it."""

import functools
import json

import pytest

from mps_trainer import Trainer

from .test_check import BERT, OURS, THEIRS, TRAIN

EVALUATES = TRAIN.replace(
    "trainer.train()",
    "assert trainer.evaluate()['eval_accuracy'] != 1\n"
    "assert set(trainer.predict(trainer.train_dataset).predictions.argmax(-1).tolist()) == {0}\n"
    "trainer.train()",
)
LARGE = BERT.replace("vocab_size=50", "vocab_size=10**9")  # 64 GB of embeddings


@pytest.fixture
def fit(run_on):
    return functools.partial(run_on, "fit")


@pytest.mark.parametrize("trainer", [OURS, THEIRS], ids=["this Trainer", "transformers' Trainer"])
def test_fit_of_a_script_that_fits_is_0_and_trains_nothing(fit, trainer, tmp_path):
    before = Trainer.train, Trainer.evaluate
    elsewhere = "import os; os.mkdir('runs'); os.chdir('runs')\n"
    result = fit(BERT + elsewhere + trainer + EVALUATES, "--json", "report.json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("A training step of BertForSequenceClassification needs ")
    assert "Peak with each of these changes:" in result.stdout
    assert "trained\n" not in result.stdout
    assert "Computing" not in result.stderr  # no terminal
    assert "are now mps_trainer's" not in result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    memory = {"memory_gb": 8, "bytes_recommended": 5726623061, "bytes_recommended_on_some": None}
    assert report["macs"][0] == {**memory, "fits": True}
    assert (Trainer.train, Trainer.evaluate) == before
    assert not (tmp_path / "runs" / "out").exists()


def test_fit_of_a_script_for_no_mac_is_1_and_needs_no_memory(fit, tmp_path):
    (tmp_path / "out").mkdir()
    result = fit(LARGE + OURS + TRAIN)
    assert result.returncode == 1, result.stderr
    assert "yes" not in result.stdout.split("fits", 1)[1].splitlines()[0]
    assert "weights        59.6 GiB" in result.stdout
    assert "Nothing was trained." in result.stdout
    assert (tmp_path / "out").exists()  # it was there before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('no trainer')", "ended with status 0 before it trained"),
        ("1 / 0", "ended with status 1 before it trained"),
    ],
)
def test_fit_of_a_script_that_does_not_train_is_2(fit, text, said):
    result = fit(text)
    assert result.returncode == 2
    assert said in result.stderr.splitlines()[-1]


WAV2VEC2 = """
from tests.test_heads import HEADS
(model, row), (_, other) = HEADS["CTC"](), HEADS["CTC"]()
Trainer(model, TrainingArguments("out"), train_dataset=[row, other]).train()
"""


def test_fit_prints_the_memory_of_a_wav2vec2_that_has_no_weights_inside_the_command(fit):
    result = fit(OURS + WAV2VEC2)
    assert "A training step of Wav2Vec2ForCTC needs" in result.stdout, result.stderr
    assert "gradient_checkpointing=True" in result.stdout
