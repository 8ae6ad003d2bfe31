"""Runs a command that trains, and starts it again when it dies."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from ..launching.processes import signals_handled
from ..launching.restarts import (
    ERROR,
    PROGRESS,
    End,
    Progress,
    Restart,
    Supervision,
    announcement,
    decide,
    pause,
)
from ..reports.record import NAME, PAGE, is_foreign
from ..utils.terminal import on_terminal

PAUSE = "MPS_TRAINER_RESTART_PAUSE"  # seconds before the first restart, which tests shorten
_FORWARDED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
_LAST_WORDS = 5.0  # seconds for the tracebacks of a run that hangs
# These are the names of checkpoints.folders, which would load torch; a supervisor has to stay small.
_LEFT_OVER = re.compile(r"\.mps_trainer\.lock|tmp-checkpoint-.*")


def supervise(command: Sequence[str], most: int, environ: Mapping[str, str], hang_timeout: float | None = None) -> int:
    """Runs `command`, starts it again up to `most` times when it dies, and returns its exit status.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to it, and end the run.

    Args:
        hang_timeout: seconds without progress in training after which a run counts as dead; None: never. Python then
            writes where each thread stands.
    """
    if hang_timeout is not None:
        environ = {**environ, "PYTHONFAULTHANDLER": "1"}
    first_pause, restarts, child = float(environ.get(PAUSE, 1)), list[Restart](), Child()
    with tempfile.TemporaryDirectory(prefix="mps-trainer-") as notes, signals_handled(_FORWARDED, child.pass_on):
        name = uuid.uuid4().hex
        while True:
            supervision = Supervision(name, most, tuple(restarts), notes)
            for note in (PROGRESS, ERROR):
                Path(notes, note).unlink(missing_ok=True)
            heartbeat = None if hang_timeout is None else Heartbeat(notes, hang_timeout)
            status = child.run(command, {**environ, **supervision.variables()}, heartbeat)
            shell_status = status if status >= 0 else 128 - status
            if child.signum is not None:
                return shell_status
            hung_for = 0.0 if heartbeat is None or not heartbeat.is_lost else heartbeat.timeout
            decision = decide(read_end(status, notes, hung_for), restarts, most, time.time())
            if isinstance(decision, str):
                if decision:
                    _say(decision)
                return shell_status
            child.end_group()  # workers of a run that was killed hold memory for a while
            checkpoint = None
            if (progress := decision.progress) is not None:
                checkpoint = newest_checkpoint(progress.folder, f"{name}:{progress.call}")
                if checkpoint is None and progress.was_empty:
                    clear(progress.folder)
            seconds = pause(decision.number, first_pause)
            _say(announcement(decision, most, seconds, checkpoint))
            if child.signalled.wait(seconds):
                return 128 + int(child.signum or 0)
            restarts.append(decision)


class Heartbeat:
    """Watches the notes of a process for progress in training.

    The clock stands still while a Mac sleeps.

    Attributes:
        is_lost: True once there was none for `timeout` seconds.
    """

    def __init__(self, notes: str, timeout: float) -> None:
        self.notes, self.timeout, self.is_lost = notes, timeout, False
        self._noted, self._since = 0, time.monotonic()

    def check(self) -> bool:
        """Returns `is_lost` as of now. Before and after training there is nothing to watch."""
        with contextlib.suppress(FileNotFoundError):
            noted = os.stat(os.path.join(self.notes, PROGRESS)).st_mtime_ns
            progress = read_end(0, self.notes).progress
            if noted != self._noted or progress is None or not progress.in_training:
                self._noted, self._since = noted, time.monotonic()
            self.is_lost = time.monotonic() - self._since > self.timeout
        return self.is_lost


class Child:
    """The process of a command, in a session of its own: Ctrl-C in a terminal reaches it once, by way of this one.

    Attributes:
        signum: the first signal that was passed on, None while there was none.
        signalled: set once there was one.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.signalled = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str], environ: Mapping[str, str], heartbeat: Heartbeat | None = None) -> int:
        """Runs `command` to its end, or until `heartbeat` is lost, and returns its status."""
        self._process = subprocess.Popen(command, env=dict(environ), start_new_session=True)
        if self.signum is not None:  # it came while the process was being started
            self._send(self.signum)
        while heartbeat is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(min(1.0, heartbeat.timeout / 4))
            if heartbeat.check():
                _abort(self._process)
        return self._process.wait()

    def end_group(self) -> None:
        """Kills the processes that the last child has left in its group."""
        if self._process is not None and os.name != "nt":
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def pass_on(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        self.signalled.set()
        self._send(signum)

    def _send(self, signum: int) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(OSError):  # it has ended
            if signum == signal.SIGTERM or os.name == "nt":
                process.send_signal(signum)
            else:  # a terminal sends it to the whole group
                os.killpg(process.pid, signum)


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


def read_end(status: int, notes: str, hung_for: float = 0.0) -> End:
    """Returns the end of a process with the notes that it left."""
    error, progress = Path(notes, ERROR), Path(notes, PROGRESS)
    written: Progress | None = None
    if progress.exists():
        with contextlib.suppress(msgspec.DecodeError):  # the process was killed while it wrote its first note
            written = msgspec.json.decode(progress.read_bytes(), type=Progress)
    return End(status, error.read_text(encoding="utf-8") if error.exists() else "", written, hung_for)


def newest_checkpoint(folder: str, run: str) -> str | None:
    """Returns the checkpoint in `folder` that the run saved last, by the manifests alone; None without one."""
    saves = {}
    for path in glob.glob(os.path.join(glob.escape(folder), "checkpoint-*", "manifest.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content.get("run") == run:
                saves[int(content["save"])] = os.path.dirname(path)
    if not saves:
        return None
    newest = saves[max(saves)]
    shorter = os.path.relpath(newest)
    return newest if shorter.startswith(os.pardir) else shorter


def clear(folder: str) -> None:
    """Removes what a run without a checkpoint left in `folder`, as scripts refuse a folder that is not empty."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and _LEFT_OVER.fullmatch(name):
            shutil.rmtree(path, ignore_errors=True)
        elif _LEFT_OVER.fullmatch(name) or (name in (NAME, PAGE) and not is_foreign(path)):
            with contextlib.suppress(OSError):
                os.remove(path)


def _say(text: str) -> None:
    begin = "\n" if on_terminal() else ""  # a process that was killed has left its bar on the line
    print(f"{begin}mps-trainer: {text}", file=sys.stderr, flush=True)
