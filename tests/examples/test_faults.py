"""A failure in the middle of a run ends the script in one line without a traceback."""

import pytest

import mps_trainer
from mps_trainer import Trainer

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
