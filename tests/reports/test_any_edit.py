"""Whatever is changed in a run record or the state of a checkpoint: there is a page, or one line that says why not."""

import contextlib
import io
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

from mps_trainer.cli import main
from mps_trainer.reports.record import NAME
from tests.edits import mutate, try_edits
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


@pytest.mark.parametrize("count", [30, pytest.param(2000, marks=pytest.mark.acceptance)])
def test_any_edit_of_a_record_is_refused_or_shown(count):
    try_edits(count, check_any_edit)
