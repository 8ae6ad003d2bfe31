"""Bad input of every kind ends in one line, exit status 2, and folders in which nothing has changed."""

from __future__ import annotations

import pytest

from .cases import TRAIN, TSV_FILES, Case, snapshot
from .checkpoints import CHECKPOINTS
from .commands import COMMANDS
from .configs import CONFIGS
from .conftest import make_model
from .data import DATA
from .flags import FLAGS
from .images import IMAGE_CASES
from .models import MODELS
from .tables import TABLES
from .texts import TEXT_CASES

CASES = [*FLAGS, *CONFIGS, *DATA, *TABLES, *MODELS, *CHECKPOINTS, *COMMANDS, *IMAGE_CASES, *TEXT_CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_refused_in_one_line_and_touches_nothing(run, case):
    work = run.prepare(case)
    before = snapshot(work)
    status, errors = run(case)
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith(f"{case.program.split()[0]}")
    assert ": error: " in errors
    assert [part for part in case.fragments if part not in errors] == [], errors
    assert len(errors) < 1200
    assert status == case.status
    assert snapshot(work) == before


@pytest.mark.parametrize(
    "settings",
    [{"problem_type": "multi_label_classification"}, {"problem_type": "regression"}, {"max_position_embeddings": 12}],
    ids=str,
)
def test_what_a_model_was_trained_for_before_does_not_end_a_run(run, settings):
    """Nor that its texts were shorter: what follows from the data is taken from the data."""

    def make(folder):
        make_model(folder / "model", **settings)

    case = Case("", (*TRAIN, "--max_seq_length", "999", "--output_dir", "out"), "", TSV_FILES, make, ["model"])
    run.prepare(case)
    status, errors = run(case)
    assert (status, errors) == (0, "")


def test_no_two_cases_are_the_same():
    names = [case.name for case in CASES]
    assert sorted(set(names)) == sorted(names)
    inputs = [(case.program, *case.command, str(case.files), str(case.environ), case.make) for case in CASES]
    assert len(set(inputs)) == len(inputs) >= 150


@pytest.mark.parametrize(
    "case",
    [FLAGS[0], CONFIGS[0], DATA[0], TABLES[0], MODELS[0], CHECKPOINTS[0], COMMANDS[0]],
    ids=lambda case: case.name,
)
def test_a_traceback_comes_when_it_is_asked_for_and_the_line_stays_the_last(run, case, monkeypatch):
    run.prepare(case)
    monkeypatch.setenv("MPS_TRAINER_TRACEBACK", "1")
    status, errors = run(case)
    assert errors.startswith("Traceback (most recent call last):\n")
    assert ": error: " in errors.splitlines()[-1]
    assert status == case.status


@pytest.mark.parametrize("program", ["run_glue.py", "mps-trainer"])
def test_an_error_that_nobody_foresaw_is_a_line_that_says_how_to_see_more(run, program, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("division\nby zero")

    if program == "run_glue.py":
        import run_glue as module

        monkeypatch.setattr(module, "load_data", fail)
        case = Case("", ("--task_name", "mrpc", "--embedded", "--output_dir", "out"), "")
    else:
        from mps_trainer.cli import doctor as module

        monkeypatch.setattr(module, "gather_all_facts", fail)
        case = Case("", ("doctor",), "", program=program)
    run.prepare(case)
    status, errors = run(case)
    assert (
        errors == f"{program}: error: ZeroDivisionError: division by zero. Set MPS_TRAINER_TRACEBACK=1 to see the "
        "traceback.\n"
    )
    assert status == 1
