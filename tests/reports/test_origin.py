"""The origin of a run: command line without secrets, commit, dataset and base model."""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace

import pytest

from mps_trainer.reports import origin, summary
from mps_trainer.reports.origin import command_line, commit_of, dataset_name, origin_of
from mps_trainer.reports.record import NAME

from .conftest import read_back


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.py", "--epochs", "3"], "train.py --epochs 3"),
        (["train.py", "a file"], "train.py 'a file'"),
        (["train.py", "--hub_token", "SECRET", "--seed", "7"], "train.py --hub_token '(hidden)' --seed 7"),
        (["train.py", "--hub_token=SECRET"], "train.py '--hub_token=(hidden)'"),
        (["train.py", "--api-key", "SECRET", "SECRET"], "train.py --api-key '(hidden)' '(hidden)'"),
        (["train.py", "--Password", "-SECRET"], "train.py --Password '(hidden)'"),
        (["train.py", "wandb.secret=SECRET"], "train.py 'wandb.secret=(hidden)'"),
        (["train.py", "WANDB_API_KEY=SECRET"], "train.py 'WANDB_API_KEY=(hidden)'"),
        (["train.py", "--hub_tok", "hf_abcdefghijklmnopqrst"], "train.py --hub_tok '(hidden)'"),
        (["train.py", "https://me:SECRET@host/data"], "train.py 'https://(hidden)@host/data'"),
        (["train.py", "--use_auth_token", "--seed", "7"], "train.py --use_auth_token --seed 7"),
        (["train.py", "--tokenizer_name", "bert"], "train.py --tokenizer_name bert"),
        (["train.py", "--max_new_tokens", "20"], "train.py --max_new_tokens 20"),
        (["train.py", "--tokenizer_auth_token", "SECRET"], "train.py --tokenizer_auth_token '(hidden)'"),
        (["train.py", "--admin_tokens", "SECRET"], "train.py --admin_tokens '(hidden)'"),
        (["train.py", "--max_tokens", "5"], "train.py --max_tokens 5"),
        (["train.py", "--num_train_tokens", "5"], "train.py --num_train_tokens 5"),
        (["train.py", "--max-new-tokens=5"], "train.py --max-new-tokens=5"),
        (["train.py", "--passphrase", "SECRET"], "train.py --passphrase '(hidden)'"),
        (["train.py", "--auth", "SECRET"], "train.py --auth '(hidden)'"),
        (["train.py", "--authorization", "SECRET"], "train.py --authorization '(hidden)'"),
        (["train.py", "--author", "me"], "train.py --author me"),
        (["train.py", "--password", "--VALUE", "--seed", "7"], "train.py --password '(hidden)' --seed 7"),
        (["train.py", "--auth", "--key", "--VALUE", "--seed"], "train.py --auth '(hidden)' '(hidden)' --seed"),
        (["train.py", "+api_key=SECRET"], "train.py '+api_key=(hidden)'"),
        (["train.py", "++hub.token=SECRET"], "train.py '++hub.token=(hidden)'"),
        (["train.py", "+model.max_tokens=5"], "train.py +model.max_tokens=5"),
        (["train.py", "https://me:SECRET@/SECRET@host/data"], "train.py 'https://(hidden)@host/data'"),
        (["train.py", "https://me@home:SEC/RET@host/data"], "train.py 'https://(hidden)@host/data'"),
        (["train.py", "https://SEC@RET@host/data"], "train.py 'https://(hidden)@host/data'"),
        (["train.py", "git+https://host/data@main"], "train.py git+https://host/data@main"),
        (["train.py", "-config", "small.yaml"], "train.py -config small.yaml"),
        (["-c", "token = 'SECRET'", "--seed", "7"], "-c ... --seed 7"),
        (["-uc", "token = 'SECRET'", "--seed", "7"], "-uc ... --seed 7"),
        (["-W", "ignore", "-Bc", "token = 'SECRET'"], "-W ignore -Bc ..."),
        (["-u", "-ctoken = 'SECRET'\nprint()", "--seed", "7"], "-u -c... --seed 7"),
        (["-mtrain", "-config", "small.yaml"], "-mtrain -config small.yaml"),
        (["-c"], "-c"),
        (["-m", "train", "line\nline"], "-m train 'line line'"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_the_command_line_has_no_secret(words, shown):
    line = command_line(["/usr/bin/python3", *words])
    assert line == f"python3 {shown}"
    assert "SECRET" not in line


def test_a_known_secret_is_hidden_anywhere():
    line = command_line(["python", "train.py", "--hub_tok", "mine"], secrets=["mine"])
    assert line == "python train.py --hub_tok '(hidden)'"


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
    monkeypatch.setattr(origin.subprocess, "run", lambda *words, **settings: pytest.fail("git was started"))
    assert commit_of(str(tmp_path)) == ""


def test_a_git_that_hangs_or_is_missing_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "git"
    program.write_text("#!/bin/sh\nexec /bin/sleep 20\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(origin, "_GIT_TIMEOUT", 0.2)
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


def test_what_is_not_known_is_left_out(tmp_path):
    assert origin_of([], str(tmp_path), None, None, ()) == {}
    config = SimpleNamespace(_name_or_path="bert-base")
    assert origin_of([], str(tmp_path), None, config, ()) == {"base_model": "bert-base"}


def test_a_run_has_its_origin_in_the_record(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["python", "train.py", "--hub_tok", "mine"])
    monkeypatch.chdir(tmp_path)
    make_trainer(report=True, max_steps=1, hub_token="mine").train()
    assert read_back(tmp_path / "run")["origin"] == {"command": "python train.py --hub_tok '(hidden)'"}
    assert "mine" not in (tmp_path / "run" / NAME).read_text()


def test_the_rows_of_the_page(record):
    assert summary.origin_rows(record) == [
        ("command line", "python train.py"),
        ("git commit", "0" * 40),
        ("dataset", "glue, mrpc"),
        ("base model", "bert-base"),
        ("best checkpoint", "checkpoint-4: accuracy 0.75 at step 4"),
    ]
    record.origin, record.best = {}, {}
    assert summary.origin_rows(record) == []
