"""Whatever is changed in a run record or the state of a checkpoint: there is a page, or one line that says why not."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mps_trainer.cli import main
from mps_trainer.reports.record import NAME
from tests.edits import mutate
from tests.reports.conftest import RECORD

STATE = {"global_step": 4, "max_steps": 4, "best_metric": 0.5, "best_global_step": 2, "train_batch_size": 4}
FILES = {NAME: RECORD, "trainer_state.json": {**STATE, "log_history": RECORD["history"]}}


def check_any_edit(draw):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        folder.mkdir()
        file = draw(st.sampled_from(sorted(FILES)))
        (folder / file).write_text(json.dumps(FILES[file]))
        for _ in range(draw(st.integers(1, 2))):
            if (folder / file).is_file() and not (folder / file).is_symlink():
                mutate(draw, folder)
        with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
            status = main(["report", str(folder), "--output", f"{name}/page.html"])
        refusal = errors.getvalue()
        assert status == (2 if refusal else 0)
        assert refusal.count("\n") == status / 2
        shutil.rmtree(folder)


quickly = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "database": None,
    "phases": [Phase.generate],
}


@settings(max_examples=30, **quickly)
@given(st.data())
def test_any_edit_of_a_record_is_refused_or_shown(data):
    check_any_edit(data.draw)


@pytest.mark.acceptance
@settings(max_examples=2000, **quickly)
@given(st.data())
def test_any_of_many_edits_of_a_record_is_refused_or_shown(data):
    check_any_edit(data.draw)
