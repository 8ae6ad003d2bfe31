"""Runs a command that trains, and starts it again when it dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ..checkpoints.folders import is_left_over
from ..checkpoints.resume import checkpoints_of_run
from ..launching.processes import shell_status, signals_handled, status_of_signal
from ..launching.restarts import (
    ALIVE,
    ERROR,
    PROGRESS,
    VARIABLE,
    End,
    Progress,
    Restart,
    Supervision,
    announcement,
    decide,
)
from ..reports.record import NAME, PAGE, is_foreign
from ..utils.terminal import on_terminal

PAUSE = "MPS_TRAINER_RESTART_PAUSE"  # seconds before the first restart, which tests shorten
_LONGEST_PAUSE = 60  # seconds; each pause is twice as long as the one before
_LAST_WORDS = 5.0  # seconds for the tracebacks of a run that hangs


def supervise(
    command: Sequence[str],
    most: int,
    environ: Mapping[str, str],
    hang_timeout: float | None = None,
    is_launcher: bool = False,
) -> int:
    """Runs `command`, starts it again up to `most` times when it dies, and returns its exit status.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to it, and end the run.

    Args:
        hang_timeout: seconds without progress in training after which a run counts as dead; None: never. Python then
            writes where each thread stands.
        is_launcher: True if the command starts the processes that train, and returns their exit status as shells do.
    """
    if hang_timeout is not None:
        environ = {**environ, "PYTHONFAULTHANDLER": "1"}
    name, restarts, seconds = uuid.uuid4().hex, list[Restart](), float(environ.get(PAUSE, 1))
    process: subprocess.Popen[bytes] | None = None
    signals, signalled = list[int](), threading.Event()

    def pass_on(signum: int, frame: Any) -> None:
        signals.append(signum)
        signalled.set()
        if process is not None:
            _send(process, signum)

    # the folder goes before the pipe closes, so a process that lives longer can tell an end from a death
    with (
        contextlib.ExitStack() as pipe,
        tempfile.TemporaryDirectory(prefix="mps-trainer-") as notes,
        signals_handled(pass_on),
    ):
        _hold_open(Path(notes, ALIVE), pipe)
        while True:
            for note in (PROGRESS, ERROR):
                Path(notes, note).unlink(missing_ok=True)
            variables = Supervision(name, tuple(restarts), notes).variables()
            # in a session of its own: Ctrl-C in a terminal reaches it once, by way of this process
            process = subprocess.Popen(command, env={**environ, **variables}, start_new_session=True)
            if signals:  # one came while the process was being started
                _send(process, signals[0])
            end = _wait(process, notes, hang_timeout)
            if is_launcher:
                end = replace(end, status=status_of_signal(end.status))
            if signals:
                return shell_status(end.status)
            decision = decide(end, restarts, most, time.time())
            if decision:
                _end_what_it_left(process, name)
            if isinstance(decision, str):
                if decision:
                    _say(decision)
                return shell_status(end.status)
            checkpoint = None
            if (progress := decision.progress) is not None:
                checkpoint = newest_checkpoint(progress.folder, f"{name}:{progress.call}")
                if checkpoint is None and progress.was_empty:
                    clear(progress.folder)
            _say(announcement(decision, most, seconds, checkpoint))
            if signalled.wait(seconds):
                return 128 + signals[0]
            restarts.append(replace(decision, checkpoint=checkpoint and os.path.abspath(checkpoint)))
            seconds = min(2 * seconds, _LONGEST_PAUSE)


def _hold_open(path: Path, stack: contextlib.ExitStack) -> None:
    """Makes a pipe at `path` and keeps its writing end open until `stack` or this process ends. Windows has none."""
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a reader cannot be opened for writing
        stack.callback(os.close, os.open(path, os.O_WRONLY))
        os.close(reader)


def _send(process: subprocess.Popen[bytes], signum: int) -> None:
    """Passes a signal on, as a terminal or `kill` would, to a process that has not ended."""
    if process.returncode is None:
        with contextlib.suppress(OSError):  # it ends now
            if signum == signal.SIGTERM or os.name == "nt":
                process.send_signal(signum)
            else:  # a terminal sends it to the whole group
                os.killpg(process.pid, signum)


def _wait(process: subprocess.Popen[bytes], notes: str, timeout: float | None) -> End:
    """Waits for the end of a process, and ends it if it makes no progress in training for `timeout` seconds.

    The clock stands still while a Mac sleeps. Before and after training there is nothing to watch.
    """
    if timeout is None:
        return read_end(process.wait(), notes)
    noted, since = 0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return read_end(process.wait(min(1.0, timeout / 4)), notes)
        with contextlib.suppress(FileNotFoundError):
            written = os.stat(os.path.join(notes, PROGRESS)).st_mtime_ns
            progress = read_end(0, notes).progress
            if written != noted or progress is None or not progress.in_training:
                noted, since = written, time.monotonic()
            elif time.monotonic() - since > timeout:
                _abort(process)
                return read_end(process.wait(), notes, timeout)


def _abort(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that hangs and all below it: after SIGABRT Python writes tracebacks, and SIGKILL is sure."""
    import psutil

    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(process.pid).children(recursive=True)  # torchrun's are in sessions of their own
    if os.name != "nt":
        for each in (process, *below):
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS)
    for each in (process, *below):
        with contextlib.suppress(psutil.Error):
            each.kill()


def _end_what_it_left(process: subprocess.Popen[bytes], run: str) -> None:
    """Ends the workers of a process that has died, which hold memory for a while, and torchrun's processes.

    These are in sessions of their own, and would train on beside the processes of the next start.
    """
    import psutil

    if os.name != "nt":
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environ = each.environ()
            if "TORCHELASTIC_RUN_ID" in environ and run in environ.get(VARIABLE, ""):
                each.kill()


def read_end(status: int, notes: str, hung_for: float = 0.0) -> End:
    """Returns the end of a process with the notes that it left."""
    error, progress = Path(notes, ERROR), Path(notes, PROGRESS)
    written: Progress | None = None
    if progress.exists():
        with contextlib.suppress(msgspec.DecodeError):  # the process was killed while it wrote its first note
            written = msgspec.json.decode(progress.read_bytes(), type=Progress)
    return End(status, error.read_text(encoding="utf-8") if error.exists() else "", written, hung_for)


def newest_checkpoint(folder: str, run_id: str) -> str | None:
    """Returns the checkpoint in `folder` that the run saved last, as a short path; None without one.

    It is read only when the run starts again, which takes another one if this is damaged.
    """
    saved = checkpoints_of_run(folder, run_id)
    if not saved:
        return None
    shorter = os.path.relpath(saved[-1])
    return saved[-1] if shorter.startswith(os.pardir) else shorter


def clear(folder: str) -> None:
    """Removes what a run without a checkpoint left in `folder`, as scripts refuse a folder that is not empty."""
    # a trial of a search makes its folder at the first save, and a script may remove it
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        if os.path.isdir(path) and is_left_over(name):
            shutil.rmtree(path, ignore_errors=True)
        elif is_left_over(name) or (name in (NAME, PAGE) and not is_foreign(path)):
            with contextlib.suppress(OSError):
                os.remove(path)


def _say(text: str) -> None:
    begin = "\n" if on_terminal() else ""  # a process that was killed has left its bar on the line
    print(f"{begin}mps-trainer: {text}", file=sys.stderr, flush=True)
