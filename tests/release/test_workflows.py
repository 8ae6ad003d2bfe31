"""The workflows name what exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from mps_trainer.cli import _parser

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    found["on"] = found.pop(True, found.get("on"))  # YAML 1.1 reads the key `on` as true
    return found


def steps_of(path: Path) -> list[dict]:
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


def commands_of(path: Path) -> list[list[str]]:
    lines = [line for step in steps_of(path) for line in step.get("run", "").replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.count('"') % 2 == 0]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_may_only_read_and_end_by_themselves(path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "group" in workflow["concurrency"]
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 45
        assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[\w./-]+", step["uses"]) for step in job["steps"] if "uses" in step)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_the_steps_run_exists(path):
    for words in commands_of(path):
        program = next((i for i, word in enumerate(words) if word.endswith("mps-trainer")), None)
        if program is not None and "echo" not in words:
            mine = words[program + 1 :]
            stop = next((i for i, word in enumerate(mine) if word in ("||", ">")), len(mine))
            _parser().parse_args(mine[:stop])
        for word in words:
            if word.startswith(("tests/", ".ci/")) or word in ("constraints.txt", "CHANGELOG.md", "CITATION.cff"):
                assert (ROOT / word).exists(), word


def test_linux_runs_all_that_has_to_pass_and_a_mac_what_fits():
    workflow = load(ROOT / ".github" / "workflows" / "ci.yml")
    assert set(workflow["on"]) >= {"push", "pull_request"}
    assert workflow["jobs"]["linux"]["steps"][-1]["run"] == "bash .ci/run"
    mac = workflow["jobs"]["macos"]
    assert mac["runs-on"] == "macos-15"
    runs = " ".join(step.get("run", "") for step in mac["steps"])
    assert "mps-trainer doctor" in runs
    assert "mps-trainer selftest --json selftest.json" in runs
    uploads = [step["with"]["path"] for step in mac["steps"] if "upload-artifact" in step.get("uses", "")]
    assert "selftest.json" in uploads[0]


def test_a_release_is_checked_before_it_is_published():
    jobs = load(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    runs = [step["run"].splitlines()[0] for step in jobs["build"]["steps"] if "run" in step]
    assert "python -m build" in runs
    assert "python -m twine check --strict dist/*" in runs
    assert jobs["publish"]["needs"] == "build"
