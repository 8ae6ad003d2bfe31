"""The facts of a run that do not change with its steps: commit, dataset, command line."""

import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest

from mps_trainer.reports import run_facts
from mps_trainer.reports.run_facts import commit_of, dataset_name

from .conftest import read_back


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_commit_of_the_working_directory(tmp_path):
    assert commit_of(str(tmp_path)) == ""
    git(tmp_path, "init", "-q")
    assert commit_of(str(tmp_path)) == ""  # nothing was committed yet
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    (tmp_path / "below").mkdir()
    assert commit_of(str(tmp_path / "below")) == git(tmp_path, "rev-parse", "HEAD")


def test_a_working_directory_that_is_gone_has_no_commit(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert commit_of(".") == ""


def test_git_is_not_started_outside_of_a_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(run_facts.subprocess, "run", lambda *words, **settings: pytest.fail("git was started"))
    assert commit_of(str(tmp_path)) == ""


def test_a_git_that_hangs_or_is_missing_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "git"
    program.write_text("#!/bin/sh\nexec /bin/sleep 20\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(run_facts, "_GIT_TIMEOUT", 0.2)
    begun = time.perf_counter()
    assert commit_of(str(tmp_path)) == ""
    assert time.perf_counter() - begun < 10
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(str(tmp_path)) == ""


def test_a_dataset_has_the_name_that_its_library_gave_it():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [1]})
    assert dataset_name(rows) == ""
    rows.info.dataset_name, rows.info.config_name = "glue", "mrpc"
    rows._split = datasets.Split.TRAIN
    assert dataset_name(rows) == "glue, mrpc, split train"
    assert dataset_name(SimpleNamespace(dataset=rows)) == "glue, mrpc, split train"
    assert dataset_name([1, 2]) == ""


def test_a_module_is_named_as_it_was_started(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/package/train.py", "--seed", "7"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("package.train", None))
    make_trainer(report=True, max_steps=1).train()
    assert read_back(tmp_path / "run")["origin"]["command"] == "python -m package.train --seed 7"
