"""Processes that die, and are started again. A shell takes the place of the script."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict

import psutil
import pytest

from mps_trainer.checkpoints import manifest
from mps_trainer.cli import supervisor
from mps_trainer.cli.supervisor import PAUSE, clear, newest_checkpoint, supervise
from mps_trainer.launching.restarts import ALIVE, PROGRESS, VARIABLE, Progress
from tests import run_python

# $number is that of the start, $notes the folder for notes; `at STEP` notes a step of a run.
BEGIN = f"""
echo >> starts
number=$(($(wc -l < starts)))
notes=$(printf %s "${VARIABLE}" | sed 's/.*"notes":"\\([^"]*\\)".*/\\1/')
at() {{ printf '{{"folder": "%s/out", "step": %s, "examples": 8}}' "$PWD" "$1" > "$notes/{PROGRESS}"; }}
"""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Supervises a shell with this text; returns the exit status and the number of starts."""
    monkeypatch.chdir(tmp_path)

    def run(
        text: str, most: int = 3, pause: float = 0.01, hang_timeout: float | None = None, is_launcher: bool = False
    ) -> tuple[int, int]:
        environ = {**os.environ, PAUSE: str(pause)}
        status = supervise(["/bin/sh", "-c", BEGIN + text], most, environ, hang_timeout, is_launcher)
        return status, len((tmp_path / "starts").read_text())

    return run


@contextlib.contextmanager
def signal_after(path, signum, seconds=0.0):
    """Sends this process a signal after there is a file."""

    def send():
        while not path.exists():
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(os.getpid(), signum)

    sender = threading.Thread(target=send)
    sender.start()
    yield
    sender.join()


def assert_ended(path):
    worker = int(path.read_text())
    assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("death", "said"),
    [
        ("kill -KILL $$", "was killed (SIGKILL, which a system short of memory sends) after step 5."),
        ("exit 3", "ended with status 3 and no error after step 5."),
        ("printf memory > $notes/error.txt; exit 1", "ran out of memory after step 5."),
    ],
)
def test_a_process_that_dies_is_started_again(shell, capsys, death, said):
    assert shell(f'[ "$number" = 2 ] && exit 0; at 5; {death}') == (0, 2)
    err = capsys.readouterr().err
    assert err.startswith(f"mps-trainer: the run {said} Restart 1 of 3 in 0.01 s: ")
    assert err.count("\n") == 1
    assert ("It trains on 4 examples at a time" in err) == ("memory" in said)


def test_the_line_about_a_restart_does_not_continue_a_bar_that_is_left_on_the_terminal(shell, capsys, monkeypatch):
    monkeypatch.setattr(supervisor, "on_terminal", lambda: True)
    assert shell('at 5; [ "$number" = 2 ] && exit 0; kill -KILL $$') == (0, 2)
    assert capsys.readouterr().err.startswith("\nmps-trainer: the run was killed")


def test_notes_of_the_process_before_do_not_count(shell):
    assert shell('[ "$number" = 2 ] && exit 1; at 5; printf gpu > $notes/error.txt; exit 1') == (1, 2)


def test_pauses_grow(shell, capsys, monkeypatch):
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE", 0.03)
    assert shell('[ "$number" = 4 ] && exit 0; at $number; kill -ABRT $$') == (0, 4)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" of 3 in ")[2].partition(":")[0] for line in lines] == ["0.01 s", "0.02 s", "0.03 s"]


@pytest.mark.parametrize(("is_launcher", "starts"), [(False, 1), (True, 2)])
def test_status_137_is_a_kill_only_from_a_launcher(shell, capsys, is_launcher, starts):
    assert shell('[ "$number" = 2 ] && exit 0; exit 137', is_launcher=is_launcher)[1] == starts
    assert ("was killed" in capsys.readouterr().err) == is_launcher


def test_status_0_in_the_middle_of_training_is_reported(shell, capsys):
    assert shell("at 5; exit 0") == (0, 1)
    assert capsys.readouterr().err.startswith("mps-trainer: the run ended with status 0 in the middle of training, ")


def test_a_pipe_beside_the_notes_is_open_while_the_supervisor_lives(shell, tmp_path):
    wait = f'while read line; do :; done < "$notes/{ALIVE}"'  # until the other end is closed
    assert shell(f'({wait}; [ -d "$notes" ] || touch ended) > /dev/null 2>&1 & test -p "$notes/{ALIVE}"') == (0, 1)
    while not (tmp_path / "ended").exists():
        time.sleep(0.01)


def test_the_pipe_is_closed_after_its_folder_is_gone(shell, monkeypatch):
    gone = []

    def hold_open(path, stack):
        stack.callback(lambda: gone.append(not path.parent.exists()))

    monkeypatch.setattr(supervisor, "_hold_open", hold_open)
    assert shell("exit 0") == (0, 1)
    assert gone == [True]


def test_a_run_without_progress_ends(shell, capsys):
    assert shell("at 5; kill -KILL $$", most=9) == (137, 2)
    assert capsys.readouterr().err.endswith("It is not started again, because it makes no progress.\n")


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_passed_on_and_ends_the_run(shell, capsys, tmp_path, signum, status):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    # the shell waits in the background: it would run the trap only when a command has ended
    text = f"trap 'echo saved >> out.txt; exit {status}' INT TERM; at 5; touch ready; sleep 5 & wait $!"
    with signal_after(tmp_path / "ready", signum):
        assert shell(text) == (status, 1)
    assert (tmp_path / "out.txt").read_text() == "saved\n"  # once
    assert capsys.readouterr().err == ""
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_signal_during_a_pause_ends_the_run(shell, tmp_path):
    with signal_after(tmp_path / "starts", signal.SIGTERM, 0.3):
        assert shell("kill -ABRT $$", pause=60) == (143, 1)


@pytest.mark.parametrize("deaf", ["", "trap '' ABRT; "])
def test_run_that_hangs_is_started_again(shell, capsys, monkeypatch, tmp_path, deaf):
    monkeypatch.setattr(supervisor, "_LAST_WORDS", 0.2)
    text = f'{deaf}at 5; [ "$number" = 2 ] && exit 0; setsid sleep 60 & echo $! > worker; wait'
    assert shell(text, hang_timeout=0.4) == (0, 2)
    err = capsys.readouterr().err
    assert err.startswith("mps-trainer: the run made no progress for 0.4 s after step 5. Restart 1 of 3 in 0.01 s: ")
    assert "examples at a time" not in err
    assert_ended(tmp_path / "worker")


def test_progress_and_what_is_not_training_do_not_hang(shell, capsys):
    steps = "for step in 1 2 3 4 5 6 7 8; do at $step; sleep 0.1; done; "
    after = f'printf \'{{"folder": "/", "in_training": false}}\' > $notes/{PROGRESS}; '
    assert shell(f"sleep 0.9; {steps}{after}sleep 0.9; exit 0", hang_timeout=0.6) == (0, 1)
    assert capsys.readouterr().err == ""


@pytest.mark.integration
def test_python_says_where_it_hangs(tmp_path, monkeypatch, capfd):
    progress = json.dumps(asdict(Progress(str(tmp_path), 0, 5)))
    script = (
        "import json, os, pathlib, time\n"
        f"pathlib.Path(json.loads(os.environ['{VARIABLE}'])['notes'], '{PROGRESS}').write_text('{progress}')\n"
        "def stuck():\n    time.sleep(60)\n"
        "stuck()\n"
    )
    assert supervise([sys.executable, "-c", script], 3, {**os.environ, PAUSE: "0.01"}, 0.5) == 134
    assert capfd.readouterr().err.count(", line 4 in stuck") == 2


@pytest.mark.parametrize("worker", ["sleep", "TORCHELASTIC_RUN_ID=none setsid sleep"], ids=["group", "torchrun"])
def test_workers_of_a_dead_run_are_ended(shell, tmp_path, worker):
    assert shell(f'[ "$number" = 2 ] && exit 0; env {worker} 60 & echo $! > worker; sleep 0.2; kill -9 $$') == (0, 2)
    assert_ended(tmp_path / "worker")


def test_newest_checkpoint_is_one_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for step, run, save in ((2, "a:0", 1), (9, "b:0", 2), (4, "a:0", 4), (6, "a:0", 3)):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / manifest.STATE).write_text("{}")
        manifest.write(str(folder), step, save, run)
    (tmp_path / "out" / "checkpoint-8").mkdir()
    (tmp_path / "out" / "checkpoint-8" / "manifest.json").write_text("{")
    assert newest_checkpoint(str(tmp_path / "out"), "a:0") == "out/checkpoint-4"
    assert newest_checkpoint(str(tmp_path / "out"), "c:0") is None
    monkeypatch.chdir(tmp_path / "out" / "checkpoint-2")
    assert newest_checkpoint(str(tmp_path / "out"), "a:0") == str(tmp_path / "out" / "checkpoint-4")
    assert newest_checkpoint(str(tmp_path / "none"), "a:0") is None


@pytest.mark.integration
def test_supervisor_stays_small_because_it_loads_no_torch():
    code = "import sys; from mps_trainer.cli import supervisor; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert run_python("-c", code).stdout.split() == ["False", "False"]


def test_what_a_run_left_is_cleared_for_scripts_that_refuse_a_full_folder(shell, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "tmp-checkpoint-3").mkdir()
    (out / "tmp-checkpoint-mine").mkdir()
    for name, text in ((".mps_trainer.lock", ""), ("run_record.json", '{"generator": "mps_trainer report"}')):
        (out / name).write_text(text)
    for name in ("report.html", "notes.txt"):
        (out / name).write_text("mine")
    progress = json.dumps(asdict(Progress(str(out), was_empty=True)))
    assert shell(f"""[ "$number" = 2 ] && exit 0; printf %s '{progress}' > $notes/{PROGRESS}; kill -ABRT $$""")[1] == 2
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "report.html", "tmp-checkpoint-mine"]
    clear(str(out))
    assert len(list(out.iterdir())) == 3
    clear(str(tmp_path / "none"))  # a run may die before its folder exists
