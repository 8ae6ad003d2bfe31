"""The defaults of run_glue.py, and how it ends when a run fails."""

import json

import pytest
from run_glue import parse

import mps_trainer
from mps_trainer import Trainer

EMBEDDED = ["--task_name", "mrpc", "--embedded"]
REAL = ["--task_name", "mrpc", "--data_dir", "d", "--model_name_or_path", "m", "--do_eval"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("source", [EMBEDDED, REAL], ids=["embedded", "real"])
@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ([], "bucket_by_length"),
        (["--pad_to_max_length", "True"], "random"),
        (["--pad_to_max_length"], "random"),
        (["--train_sampling_strategy", "random"], "random"),
        (["--train_sampling_strategy=sequential"], "sequential"),
        (["--train-sampling-strategy", "random"], "random"),
        (["--pad_to_max_length", "--train_sampling_strategy", "bucket_by_length"], "bucket_by_length"),
        (["--group_by_length"], "group_by_length"),
    ],
    ids=str,
)
def test_order_is_by_length_by_default(source, words, strategy):
    _, _, training = parse([*source, *words])
    assert training.train_sampling_strategy == strategy


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ([], 16),
        (["--per_device_train_batch_size", "16"], 8),
        (["--per_device_train_batch_size", "4"], 8),
        (["--per_device_train_batch_size", "16", "--per_device_eval_batch_size", "64"], 64),
    ],
    ids=str,
)
def test_evaluation_batch_has_shape_of_training_batch(words, size):
    assert parse([*EMBEDDED, *words])[2].eval_batch_size == size


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ("bucket_by_length", 16)),
        ({"train_sampling_strategy": "random", "per_device_eval_batch_size": 4}, ("random", 4)),
        ({"pad_to_max_length": True}, ("random", 16)),
        ({"pad_to_max_length": False}, ("bucket_by_length", 16)),
    ],
    ids=str,
)
def test_arguments_in_file_have_same_defaults(tmp_path, more, expected):
    (tmp_path / "c.json").write_text(json.dumps({"task_name": "mrpc", "embedded": True, **more}))
    _, _, training = parse([str(tmp_path / "c.json")])
    assert (training.train_sampling_strategy, training.per_device_eval_batch_size) == expected


# A failure in the middle of a run


SHORT = ("--task_name", "mrpc", "--embedded", "--do_train", "--max_train_samples", 32, "--max_steps", 4)


def one_line(errors):
    (line,) = (line for line in errors.splitlines() if line.startswith("run_glue.py: error: "))
    assert "Traceback" not in errors
    return line


def test_nan_loss_ends_the_script_in_one_line(run_glue):
    status, _, errors = run_glue(*SHORT, "--stop_on_nan", "--learning_rate", "1e38", "--save_steps", 1)
    assert status == 2
    assert "nan" in one_line(errors)


class Unreadable:
    def __len__(self):
        return 32

    def __getitem__(self, row):
        raise LookupError("no text in this row")


def test_unreadable_row_ends_the_script_in_one_line(run_glue, monkeypatch):
    monkeypatch.setattr(
        mps_trainer, "Trainer", lambda **given: Trainer(**{**given, "train_dataset": Unreadable()}), raising=False
    )
    status, _, errors = run_glue(*SHORT, "--train_sampling_strategy", "sequential")
    assert status == 1
    assert "Row 0 of the dataset" in one_line(errors)


def test_unexplained_error_keeps_its_traceback(run_glue, monkeypatch):
    monkeypatch.setattr(Trainer, "train", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_glue(*SHORT)
