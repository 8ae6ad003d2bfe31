"""The workflows name what exists."""

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from mps_trainer.cli import _parser
from mps_trainer.cli.script import write_json
from mps_trainer.selftest import CheckResult, SelftestReport
from tests import HUNG_AFTER, ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    found["on"] = found.pop(True, found.get("on"))  # YAML 1.1 reads the key `on` as true
    return found


def commands_of(path: Path) -> list[list[str]]:
    steps = [step for job in load(path)["jobs"].values() for step in job["steps"]]
    lines = [line for step in steps for line in step.get("run", "").replace("\\\n", " ").splitlines()]
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
            if word.startswith(("tests/", ".ci/", "examples/")) or word in (
                "constraints.txt",
                "CHANGELOG.md",
                "CITATION.cff",
            ):
                assert (ROOT / word).exists(), word


def test_ci_runs_every_python_that_the_classifiers_name():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    classified = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", settings["metadata"]["classifiers"], re.M)
    assert classified == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    linux = load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["linux"]
    matrix = linux["strategy"]["matrix"]
    assert matrix["python"] == classified
    # GitHub adds an entry of `include` to existing jobs unless it contradicts them: its torch has to be another one
    assert matrix["torch"] == ["pinned"]
    (older,) = matrix["include"]
    assert older["torch"] != "pinned"
    below = re.search(r"pip install 'torch<([\d.]+)'\n", (ROOT / "docs" / "install.md").read_text())
    assert below is not None
    assert Version(older["torch"]) < Version(below[1])
    assert linux["env"]["TORCH"] == "${{ matrix.torch }}"


def macos_job() -> dict:
    return load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["macos"]


def step(name: str) -> str:
    """Returns the shell lines of a step of the macOS job."""
    return next(each["run"] for each in macos_job()["steps"] if each.get("name") == name)


def run_as_on_github(script: str, folder: Path, stand_in: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs shell lines as GitHub does, with a stand-in for `mps-trainer` that has these lines."""
    program = folder / "mps-trainer"
    program.write_text("\n".join(["#!/bin/sh", *stand_in]) + "\n", encoding="utf-8")
    program.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    return subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=environ, capture_output=True, text=True)


def test_no_job_runs_where_mps_computes_wrong():
    """Runners of macos-26 have such a GPU (actions/runner-images 14380), and `macos-latest` may become one of them."""
    for path in WORKFLOWS:
        used = {str(job["runs-on"]) for job in load(path)["jobs"].values()}
        assert used <= {"ubuntu-latest", "macos-15"}
    assert macos_job()["runs-on"] == "macos-15"


def test_the_macos_job_uploads_what_its_steps_write():
    steps = macos_job()["steps"]
    (upload,) = (each for each in steps if "upload-artifact" in each.get("uses", ""))
    assert upload["if"] == "always()"
    written = {
        "selftest.json": "mps-trainer selftest",
        "speed.json": "mps-trainer speed",
        "speed.md": "mps-trainer speed",
        "glue/*.json": "GLUE",
        "glue/report.html": "GLUE",
        "resumed/resume.json": "Resume after a kill",
    }
    assert upload["with"]["path"].split() == list(written)
    names = [each.get("name") for each in steps]
    for path, name in written.items():
        assert re.search(rf"\b{re.escape(path.split('/')[0])}\b", step(name)), path
        assert names.index(name) < steps.index(upload)


@pytest.mark.parametrize(
    ("status", "device", "said"),
    [
        (0, "mps", ""),
        (0, "cpu", "::notice title=mps-trainer selftest::No usable GPU on this runner: only the CPU was checked."),
        (1, "mps", "::error title=mps-trainer selftest::A check failed."),
        (2, None, "::error title=mps-trainer selftest::The selftest did not run (exit status 2)."),
    ],
)
def test_the_macos_job_fails_on_a_wrong_result_and_notes_a_missing_gpu(tmp_path, status, device, said):
    """The script of the job's selftest step runs as on GitHub, with a stand-in for `mps-trainer`."""
    lines = [f"exit {status}"]
    if device is not None:
        # "device" also stands deeper in the report, where it must not decide
        check = CheckResult("bf16", "passed" if status == 0 else "failed", "", 1.0, {"device": "mps"})
        report = SelftestReport(device, False, {}, {"device": "mps"}, {}, (), (check,), 2.0)
        write_json(str(tmp_path / "written.json"), report.to_dict())
        lines.insert(0, 'test "$*" = "selftest --json selftest.json" && cp written.json selftest.json')
    done = run_as_on_github(step("mps-trainer selftest"), tmp_path, lines)
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith(said)
    assert len(done.stdout.splitlines()) == bool(said)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, ""),
        (1, "::error title=mps-trainer speed::A workload failed."),
        (2, "::error title=mps-trainer speed::Nothing was measured (exit status 2)."),
    ],
)
def test_the_macos_job_shows_speeds_and_fails_with_a_workload(tmp_path, status, said):
    lines = ['test "$*" = "speed --quick --json speed.json" || exit 3', "echo '| a table |'", f"exit {status}"]
    done = run_as_on_github(step("mps-trainer speed"), tmp_path, lines)
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith(f"| a table |\n{said}")
    assert len(done.stdout.splitlines()) == 1 + bool(said)
    assert (tmp_path / "summary.md").read_text() == (tmp_path / "speed.md").read_text() == "| a table |\n"


@pytest.mark.acceptance  # the job runs the same script; tests/faults kills many more runs
def test_the_macos_job_resumes_after_a_kill(tmp_path, monkeypatch):
    """The script of the job runs here with fewer steps."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in {"PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    words = ["bash", str(ROOT / ".ci" / "resume-after-kill"), str(tmp_path), "--max_steps", "100"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HUNG_AFTER)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("The losses of both runs differ by 0.0e+00 at most.\n")
    assert json.loads((tmp_path / "resume.json").read_text())["steps"] == 10
