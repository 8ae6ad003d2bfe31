"""Runs that are killed and started again learn what they would have learned."""

import json
import re
import subprocess
import sys

import pytest

from mps_trainer.simulator import SimulatorUnavailableError
from mps_trainer.simulator.build import load_extension
from tests import HUNG_AFTER
from tests.faults.kill import MOST_KILLS, Harness, schedule
from tests.faults.table import LIBRARIES, PAGE, replaced, result


def kill(*arguments):
    """In a process of its own: those that are killed are forked from it, and torch must not have computed in it."""
    command = [sys.executable, "-m", "tests.faults.kill", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HUNG_AFTER)


def assert_all_identical(done, trials):
    assert f"{trials} of {trials} identical" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
    kills, in_a_save = map(int, re.search(r"(\d+) kills, (\d+) of them in a save", done.stdout).groups())
    assert kills >= trials // 2
    assert in_a_save >= 1


@pytest.mark.integration
def test_runs_that_are_killed_at_random_are_gone_on_with_exactly():
    """Each variant on each device."""
    devices = ["--device", "cpu"]
    try:
        load_extension()
        devices += ["--device", "mps"]
    except SimulatorUnavailableError:
        pass  # the CPU's trials are all there can be; .ci/run builds the device before, where its failure is one
    assert_all_identical(kill("--trials", "16", *devices), 16)


@pytest.mark.integration
def test_two_processes_of_which_one_is_killed_are_gone_on_with_exactly():
    variants = ["--variant", "accumulation", "--variant", "buckets", "--variant", "evaluation"]
    done = kill("--trials", "3", "--processes", "2", *variants)
    assert "3 of 3 identical" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


LOGS = [{"step": 2, "loss": 0.5}, {"step": 4, "loss": 0.25}]
LEARNED = {"steps": 4, "weights": "a", "everything": "b", "logs": LOGS}


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "identical"),
        ({"steps": 5}, "5 steps instead of 4"),
        ({"logs": LOGS[:1]}, "other steps were logged"),
        ({"weights": "c"}, "other weights"),
        ({"everything": "c"}, "other optimizer, schedule or random numbers"),
        ({"logs": [LOGS[0], {"step": 4, "loss": 0.5}]}, "other logs"),
    ],
)
def test_a_run_that_differs_is_told(tmp_path, changed, verdict):
    (tmp_path / "outcome.json").write_text(json.dumps(LEARNED | changed))
    assert Harness.compare(tmp_path, LEARNED, 0) == verdict


def test_a_run_that_failed_is_told_with_its_last_line(tmp_path):
    (tmp_path / "log.txt").write_text("Traceback\nValueError: no such checkpoint\n\n")
    assert Harness.compare(tmp_path, LEARNED, 1) == "could not resume: ValueError: no such checkpoint"


def test_both_libraries_are_killed_by_the_same_schedule():
    one, other = schedule(0, 3), schedule(0, 3)
    assert one[1] == other[1]
    assert one[0].random() == other[0].random()
    assert len({*schedule(0, 3)[1], *schedule(0, 4)[1], *schedule(1, 3)[1]}) == 3 * MOST_KILLS


def test_the_libraries_were_measured_with_the_same_settings():
    ours, theirs = (result(library) for library in LIBRARIES)
    settings = ("trials", "seed", "devices", "processes", "versions")
    assert {name: ours[name] for name in settings} == {name: theirs[name] for name in settings}


def test_the_page_shows_what_was_measured():
    text = PAGE.read_text(encoding="utf-8")
    assert replaced(text) == text
    assert result("two_processes")["processes"] == 2


@pytest.mark.parametrize("name", ["cpu_and_simulated_mps", "two_processes"])
def test_the_page_states_the_figures_of_the_other_series(name):
    (row,) = re.findall(rf"^\| .*`{name}.json`.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    figures = result(name)
    shown = [int(number) for number in re.findall(r"\| (\d+) (?=\|)", row)]
    assert shown == [figures["trials"], figures["kills"], figures["in_a_save"], figures["verdicts"]["identical"]]
