"""Bad input ends in one line and an exit status, and changes no folder."""

from unittest import mock

import pytest

from mps_trainer.cli import doctor

from .cases import TRAIN, TSV_FILES, Case, snapshot
from .checkpoints import CHECKPOINTS
from .commands import COMMANDS
from .configs import CONFIGS
from .conftest import make_model
from .data import DATA
from .flags import FLAGS
from .models import MODELS
from .tables import TABLES

CASES = [*FLAGS, *CONFIGS, *DATA, *TABLES, *MODELS, *CHECKPOINTS, *COMMANDS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_refused_in_one_line_and_changes_nothing(run, case):
    work = run.prepare(case)
    before = snapshot(work)
    status, errors = run(case)
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith(f"{case.program.split()[0]}")
    assert ": error: " in errors
    parts = [case.says] if isinstance(case.says, str) else case.says
    assert [part for part in parts if part not in errors] == [], errors
    assert len(errors) < 1200
    assert status == case.status
    assert snapshot(work) == before


@pytest.mark.parametrize(
    "settings",
    [
        {"problem_type": "multi_label_classification"},
        {"problem_type": "regression"},
        {"label2id": {"equivalent": 7, "not_equivalent": 0}, "id2label": {"0": "not_equivalent", "1": "equivalent"}},
    ],
)
def test_settings_of_earlier_training_do_not_end_a_run(run, settings):
    command = (*TRAIN, "--max_seq_length", "999", "--output_dir", "out")
    case = Case("", command, "", TSV_FILES, lambda folder: make_model(folder / "model", **settings), ["model"])
    run.prepare(case)
    assert run(case) == (0, "")


def test_unforeseen_error_is_one_line_with_hint(run, monkeypatch):
    monkeypatch.setattr(doctor, "gather_facts", mock.Mock(side_effect=ZeroDivisionError("division\nby zero")))
    status, errors = run(Case("", ("doctor",), "", program="mps-trainer"))
    assert status == 1
    assert errors.startswith("mps-trainer: error: ZeroDivisionError: division by zero. ")
    assert "MPS_TRAINER_TRACEBACK=1" in errors
    assert errors.count("\n") == 1
