"""train.py of text and image classification learns from local files, resumes, and refuses wrong input in one line.

tests/libraries has those that need TRL and sentence-transformers.
"""

import re
import runpy
import subprocess
import sys

import pytest

from tests import ROOT, run_python
from tests.tiny import tiny

from .conftest import write_bert, write_images, write_vit

pytestmark = pytest.mark.integration  # whole scripts


GIVEN = ["--model_name_or_path", "model", "--use_cpu", "--output_dir", "out", "--seed", "1"]


@pytest.fixture
def train(tmp_path, monkeypatch, capfd):
    """Runs examples/<name>/train.py on the CPU in a folder, which has the folder `model`, in this process."""

    def run(name, *words):
        script = str(ROOT / "examples" / name / "train.py")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *GIVEN, *words])
        capfd.readouterr()
        status = 0
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            status = end.code
        return subprocess.CompletedProcess(script, status, *capfd.readouterr())

    return run


def accuracy(done):
    assert done.returncode == 0, done.stderr[-2000:]
    return float(re.search(r"eval_accuracy += +([0-9.]+)", done.stdout)[1])


@pytest.fixture
def texts(tmp_path):
    """Writes a tiny BERT, and a table in which one word decides the label."""
    write_bert(tmp_path / "model", max_position_embeddings=128)
    rows = [
        f"the {thing} is here,{label}" for thing, label in (("boat", "water"), ("house", "land")) for _ in range(40)
    ]
    (tmp_path / "data.csv").write_text("text,label\n" + "\n".join(rows))
    return tmp_path


def test_texts_of_a_table_are_learned_and_a_second_run_resumes(train, texts):
    command = ("text-classification", "--dataset_name", "data.csv", "--learning_rate", "1e-2")
    script = ROOT / "examples" / "text-classification" / "train.py"
    first = run_python(script, *GIVEN, *command[1:], "--max_steps", "40", cwd=texts, HF_HOME=str(texts / "home"))
    assert accuracy(first) == 1.0
    assert '"1": "water"' in (texts / "out" / "config.json").read_text()
    again = train(*command, "--max_steps", "44")
    assert "Resuming from the newest checkpoint in out" in again.stdout
    assert accuracy(again) == 1.0
    assert (texts / "out" / "checkpoint-44").is_dir()


def test_a_head_for_other_labels_is_replaced_and_a_text_may_be_empty(train, texts):
    tiny("BertForSequenceClassification", vocab_size=296, num_labels=3).save_pretrained(texts / "model")
    (texts / "data.csv").write_text("text,label\n" + "the boat,water\n,land\n" * 8)
    assert accuracy(train("text-classification", "--dataset_name", "data.csv", "--max_steps", "1")) >= 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--dataset_name", "gone.csv"], "The dataset gone.csv cannot be loaded"),
        (["--dataset_nam", "data.csv"], "Did you mean --dataset_name?"),
        (["--dataset_name", "scores.csv"], "The labels are scores"),
        (["--dataset_name", "data.csv", "--model_name_or_path", "./gone"], "./gone is not a folder"),
        (["--dataset_name", "data.csv", "--model_name_or_path", "."], "The model . cannot be loaded"),
    ],
)
def test_wrong_input_is_one_line(train, texts, words, says):
    (texts / "scores.csv").write_text("text,label\n" + "a boat,1.5\na house,2.5\n" * 2)
    done = train("text-classification", *words)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if "error: " in line)
    assert line.startswith("train.py: error: ")
    assert says in line
    assert "Traceback" not in done.stderr


def test_images_in_folders_are_learned(train, tmp_path):
    write_images(tmp_path / "images", "{label}/{i}.png")
    write_vit(tmp_path / "model")
    words = ("--dataset_name", "images", "--max_steps", "30", "--learning_rate", "1e-2")
    assert accuracy(train("image-classification", *words)) == 1.0
    assert '"0": "beagle"' in (tmp_path / "out" / "config.json").read_text()
    refused = train("image-classification", "--dataset_name", "images/pug")
    assert "images/pug has no images with labels" in refused.stderr
