"""A failure in the middle of a run ends the script in one line without a traceback."""

import re

import pytest
from glue_table import Table

SHORT = ("--task_name", "mrpc", "--embedded", "--do_train", "--max_train_samples", 32, "--max_steps", 4)


def one_line(errors):
    (line,) = (line for line in errors.splitlines() if line.startswith("run_glue.py: error: "))
    assert "Traceback" not in errors
    return line


def test_a_loss_that_is_no_number_with_stop_on_nan(run_glue, out):
    status, _, errors = run_glue(*SHORT, "--stop_on_nan", "--learning_rate", "1e38", "--save_steps", 1)
    assert status == 2
    assert re.search(r"The loss was nan at step \d \(learning rate .*e\+37, rows \d+, ", one_line(errors))
    assert "lower learning_rate" in one_line(errors)


def test_a_row_that_cannot_be_read(run_glue, out, monkeypatch):
    import run_glue as script

    def unreadable(table, row):
        raise LookupError("no text in this row")

    make = script.make_trainer

    def make_trainer(*arguments):
        monkeypatch.setattr(Table, "__getitem__", unreadable)
        return make(*arguments)

    monkeypatch.setattr(script, "make_trainer", make_trainer)
    status, _, errors = run_glue(*SHORT, "--train_sampling_strategy", "sequential")
    assert status == 1
    assert "LookupError: no text in this row. Row 0 of the dataset cannot be read. " in one_line(errors)


def test_an_error_that_nobody_can_explain_keeps_its_traceback(run_glue, monkeypatch):
    import run_glue as script

    monkeypatch.setattr(script, "train", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_glue(*SHORT)
