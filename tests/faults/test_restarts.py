"""Runs that die at random under `mps-trainer run --restarts` end as undisturbed ones."""

import json
import re

import pytest

from tests import run_python
from tests.faults import scripts
from tests.faults.restarted import OUTCOME
from tests.faults.restarts import KINDS
from tests.faults.test_kill import RESULTS


@pytest.mark.integration
def test_runs_that_die_at_random_end_as_undisturbed_ones(devices):
    flags = [word for device in devices for word in ("--device", device)]
    trials = 2 * len(devices)
    done = run_python("-m", "tests.faults.restarts", "--trials", trials, *flags, "--seed", 1)
    said = f"{trials} of {trials} ended as without faults on {' and '.join(devices)}"
    assert said in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
    assert int(re.search(r"(\d+) starts;", done.stdout)[1]) >= 2 * trials


def test_result_of_the_series_is_whole():
    found = json.loads((RESULTS / "restarts.json").read_text(encoding="utf-8"))
    assert found["devices"] == ["cpu", "mps"]
    assert found["good"] == found["trials"] == sum(found["scripts"].values()) == sum(found["verdicts"].values())
    assert set(found["faults"]) == set(KINDS)


EXIT_ONCE = """
import sys
from pathlib import Path
from tests.faults import forked, restarts, scripts
forked.preload()
restarts.HANG_TIMEOUT = 60  # seconds; none of them hangs
for name, (path, _) in scripts.SCRIPTS.items():
    if path is not None:
        folder = Path(sys.argv[1], name)
        folder.mkdir()
        status, said = restarts.run(folder, name, "cpu", [("exit", 3000)], True, 1)
        assert status == 0 and "mps-trainer: the run ended with status 3 and no error after step" in said, said
"""


@pytest.mark.integration
def test_unchanged_scripts_that_leave_without_an_error_start_again(tmp_path):
    done = run_python("-c", EXIT_ONCE, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in (name for name, (path, _) in scripts.SCRIPTS.items() if path is not None):
        found = json.loads((tmp_path / name / OUTCOME).read_text())
        assert (found["steps"], found["starts"]) == (scripts.STEPS, 2)
