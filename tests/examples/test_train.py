"""train.py of text and image classification learns from local files, resumes, and refuses wrong input in one line.

tests/libraries has those that need TRL and sentence-transformers.
"""

import contextlib
import io
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests import ROOT, run_python
from tests.tiny import tiny

from .conftest import read, use_of, write_bert, write_images, write_vit

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


def evaluated_rows(folder):
    """Returns the number of rows in each evaluation of the last checkpoint."""
    checkpoint = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    log = read(checkpoint / "trainer_state.json")["log_history"]
    return [round(each["eval_runtime"] * each["eval_samples_per_second"]) for each in log if "eval_runtime" in each]


def test_columns_are_named_rows_are_capped_and_the_best_epoch_is_kept(train, texts):
    rows = [line.split(",") for line in (texts / "data.csv").read_text().splitlines()[1:]]
    lines = [f"{text},{place % 3},remark,{kind}" for place, (text, kind) in enumerate(rows)]
    (texts / "other.csv").write_text("review,label,note,kind\n" + "\n".join(lines))
    words = ["--text_column_names", "review,note", "--label_column_name", "kind", "--learning_rate", "1e-2"]
    words += [
        "--max_train_samples",
        "40",
        "--max_eval_samples",
        "5",
        "--num_train_epochs",
        "3",
        "--output_dir",
        "capped",
    ]
    done = train("text-classification", "--dataset_name", "other.csv", *words)
    assert re.search(r"eval_f1 +=", done.stdout)
    assert '"1": "water"' in (texts / "capped" / "config.json").read_text()
    assert (texts / "capped" / "checkpoint-15").is_dir()  # 3 epochs of 40 rows in batches of 8
    assert evaluated_rows(texts / "capped") == [5, 5, 5]
    state = read(texts / "capped" / "checkpoint-15" / "trainer_state.json")
    best = max((entry for entry in state["log_history"] if "eval_f1" in entry), key=lambda entry: entry["eval_f1"])
    assert (state["best_metric"], state["best_global_step"]) == (best["eval_f1"], best["step"])


def test_the_code_that_uses_a_text_model_runs(train, texts, capfd):
    assert accuracy(train("text-classification", "--dataset_name", "data.csv", "--max_steps", "1")) >= 0
    exec(use_of("text-classification", {"/tmp/reviews": "out"}), {})
    assert re.match(r"\[{'label': '(land|water)', 'score': 0\.", capfd.readouterr().out)


def test_f1_counts_each_label_the_same():
    script = runpy.run_path(str(ROOT / "examples" / "text-classification" / "train.py"))
    output = SimpleNamespace(predictions=np.eye(2)[[0, 0, 0, 0]], label_ids=np.array([0, 0, 0, 1]))
    assert script["compute_metrics"](output) == {"accuracy": 0.75, "f1": pytest.approx(3 / 7)}


def test_missing_scikit_learn_is_one_line(train, texts, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    done = train("text-classification", "--dataset_name", "data.csv")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("train.py: error: ")
    assert "mps_trainer[examples]" in done.stderr
    assert "Traceback" not in done.stderr


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
        (["--dataset_name", "data.csv", "--dataset_config_name", "de"], "leave out --dataset_config_name de"),
        (["--dataset_name", "data.csv", "--text_column_name", "text"], "Did you mean --text_column_names?"),
        (
            ["--dataset_name", "data.csv", "--text_column_names", "gone"],
            "has no text in the column 'gone'; its columns",
        ),
        (["--dataset_name", "data.csv", "--text_column_names", "a,b,c"], "give one column or two"),
        (["--dataset_name", "data.csv", "--text_column_names", "text,text"], "two different ones"),
        (["--dataset_name", "data.csv", "--text_column_names", "label"], "without the column of the labels"),
        (
            ["--dataset_name", "data.csv", "--label_column_name", "gone"],
            "has no column 'gone'; its columns are text, ",
        ),
        (["--dataset_name", "data.csv", "--max_train_samples", "0"], "--max_eval_samples must be at least 1, not 0."),
        (["--dataset_name", "data.csv", "--max_eval_samples", "few"], "invalid int value: 'few'"),
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
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(use_of("image-classification", {"/tmp/pets": "out", "pets/cat/1.jpg": "images/pug/1.png"}), {})
    assert printed.getvalue().startswith("[{'label': 'pug', 'score': 0.")
    refused = train("image-classification", "--dataset_name", "images/pug")
    assert "images/pug has no images with labels" in refused.stderr


def test_images_are_capped_and_their_columns_named(train, tmp_path):
    write_images(tmp_path / "images", "{label}/{i}.png")
    write_vit(tmp_path / "model")
    words = ["--dataset_name", "images", "--image_column_name", "image", "--label_column_name", "label"]
    words += ["--max_train_samples", "16", "--max_eval_samples", "3", "--num_train_epochs", "1"]
    assert accuracy(train("image-classification", *words)) >= 0
    assert (tmp_path / "out" / "checkpoint-2").is_dir()
    assert evaluated_rows(tmp_path / "out") == [3]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--image_column_name", "img"],
            "--image_column_name img: there is no such column; the columns are image, label.",
        ),
        (["--label_column_name", "kind"], "--label_column_name kind: there is no such column;"),
        (["--image_column_name", "label"], "images has no images with labels; its columns are image, label."),
        (["--label_column_name", "image"], "images has no images with labels; its columns are image, label."),
        (["--max_eval_samples", "-1"], "must be at least 1, not -1."),
        (["--dataset_config_name", "large"], "The dataset images cannot be loaded"),
    ],
)
def test_wrong_columns_and_caps_of_images_are_one_line(train, tmp_path, words, says):
    write_images(tmp_path / "images", "{label}/{i}.png", count=3)
    write_vit(tmp_path / "model")
    done = train("image-classification", "--dataset_name", "images", *words)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if "error: " in line)
    assert says in line
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
