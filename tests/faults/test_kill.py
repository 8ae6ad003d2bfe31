"""Killed runs that are started again end as uninterrupted ones."""

import json
import re
from pathlib import Path

import pytest

from tests import run_python
from tests.faults.kill import Harness

RESULTS = Path(__file__).parent / "results"
KILL = ("-m", "tests.faults.kill")  # a process of its own, which forks the runs: torch must not have computed in it
PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.integration
def test_randomly_killed_runs_resume_exactly(devices):
    flags = [word for device in devices for word in ("--device", device)]
    done = run_python(*KILL, "--trials", 16, *flags)
    assert "16 of 16 identical" in done.stdout, done.stdout + done.stderr
    kills, in_a_save = map(int, re.search(r"(\d+) kills, (\d+) of them in a save", done.stdout).groups())
    assert kills >= 8
    assert in_a_save >= 1
    assert done.returncode == 0


@pytest.mark.integration
def test_two_processes_resume_exactly_after_one_is_killed():
    variants = ["--variant", "accumulation", "--variant", "buckets", "--variant", "evaluation"]
    done = run_python(*KILL, "--trials", 3, "--processes", 2, *variants)
    assert "3 of 3 identical" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_difference_is_named(tmp_path):
    expected = {"steps": 4, "weights": "a", "everything": "b", "logs": []}
    (tmp_path / "outcome.json").write_text(json.dumps({**expected, "weights": "c"}))
    assert Harness.compare(tmp_path, expected, 0) == "other weights"


def test_page_shows_results_of_both_libraries_with_same_settings():
    ours, theirs = (result(library) for library in ("mps_trainer", "transformers"))
    settings = ("trials", "seed", "devices", "processes", "versions")
    assert {name: ours[name] for name in settings} == {name: theirs[name] for name in settings}
    verdicts = {"bit-identical to an uninterrupted run": "identical", "could not resume": "could not resume"}
    of_both = {"runs": "trials", "kills": "kills", "kills during a save": "in_a_save"}
    text = PAGE.read_text(encoding="utf-8")
    for row, name in of_both.items():
        assert f"| {row} | {ours[name]} | {theirs[name]} |\n" in text
    for row, name in verdicts.items():
        assert f"| {row} | {ours['verdicts'].get(name, 0)} | {theirs['verdicts'].get(name, 0)} |\n" in text


@pytest.mark.parametrize("name", ["cpu_and_simulated_mps", "two_processes"])
def test_page_shows_figures_of_other_series(name):
    (row,) = re.findall(rf"^\| .*`{name}.json`.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    figures = result(name)
    shown = [int(number) for number in re.findall(r"\| (\d+) (?=\|)", row)]
    assert shown == [figures["trials"], figures["kills"], figures["in_a_save"], figures["verdicts"]["identical"]]
