"""A failure in the middle of a run ends the script in one line without a traceback."""

import pytest
import run_glue as script
from glue_table import Table

SHORT = ("--task_name", "mrpc", "--embedded", "--do_train", "--max_train_samples", 32, "--max_steps", 4)


def one_line(errors):
    (line,) = (line for line in errors.splitlines() if line.startswith("run_glue.py: error: "))
    assert "Traceback" not in errors
    return line


def test_nan_loss_ends_the_script_in_one_line(run_glue, out):
    status, _, errors = run_glue(*SHORT, "--stop_on_nan", "--learning_rate", "1e38", "--save_steps", 1)
    assert status == 2
    assert "nan" in one_line(errors)


def test_unreadable_row_ends_the_script_in_one_line(run_glue, out, monkeypatch):
    def unreadable(table, row):
        raise LookupError("no text in this row")

    make = script.make_trainer

    def make_trainer(*arguments):
        monkeypatch.setattr(Table, "__getitem__", unreadable)
        return make(*arguments)

    monkeypatch.setattr(script, "make_trainer", make_trainer)
    status, _, errors = run_glue(*SHORT, "--train_sampling_strategy", "sequential")
    assert status == 1
    assert "Row 0 of the dataset" in one_line(errors)


def test_unexplained_error_keeps_its_traceback(run_glue, monkeypatch):
    monkeypatch.setattr(script, "train", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_glue(*SHORT)
