"""Handles SIGINT, SIGTERM and SIGHUP during a run: records the signal, so that the step is finished first.

`loop/preemption.py` then saves the step and ends the run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tqdm import tqdm

if TYPE_CHECKING:
    from ..distributed import Processes

GRACE = 3  # seconds that a worker goes on after SIGTERM
_DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if os.name != "nt":
    _DEFAULTS[signal.SIGHUP] = signal.SIG_DFL  # a terminal that closes sends it


class SignalHandler:
    """Records a first SIGINT, SIGTERM or SIGHUP inside instead of ending the process. A second one ends it at once.

    It replaces Python's own handlers only: another handler stays, an ignored signal is ignored, and outside the main
    thread nothing happens.

    Several processes end at the same step: a signal counts when all have agreed that one of them received it. There a
    second signal that follows at once comes from the launcher, which repeats what reached its processes already.

    Attributes:
        signum: the signal that came, None while there was none.
    """

    def __init__(self, wanted: bool = True, processes: Processes | None = None) -> None:
        self.signum: int | None = None
        self._received, self._received_at = 0, 0.0
        self._processes = processes if processes is not None and processes.is_distributed else None
        self._speaks = self._processes is None or self._processes.is_first
        self._answer: Callable[[], list[float]] | None = None  # waits for the other processes
        self._wanted = wanted and threading.current_thread() is threading.main_thread()
        self._process = os.getpid()

    def __enter__(self) -> SignalHandler:
        if self._wanted:
            for signum, default in _DEFAULTS.items():
                if signal.getsignal(signum) == default:
                    signal.signal(signum, self._note)
        return self

    def __exit__(self, *details: object) -> None:
        if self._wanted:
            for signum, default in _DEFAULTS.items():
                if signal.getsignal(signum) == self._note:
                    signal.signal(signum, default)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked worker, which Ctrl-C reaches as well: the run decides
            if signum == signal.SIGTERM:
                _end_at_once(signum)
        elif self._received:
            if self._processes is None or time.monotonic() - self._received_at > GRACE:
                _end_at_once(signum)
        else:
            self._received, self._received_at = signum, time.monotonic()
            if self._processes is None:
                self.signum = signum
            name = signal.Signals(signum).name
            if self._speaks:
                saving = "saving a checkpoint" + (" if the other processes still run" if self._processes else "")
                text = f"\n{name}: finishing the step and {saving}. A second signal stops at once, without saving.\n"
                with contextlib.suppress(OSError):  # print needs Python's buffers, which the signal may have hit
                    os.write(2, text.encode())

    def ask(self) -> None:
        """Starts asking the other processes whether they received a signal, without waiting for the answer."""
        if self._processes is not None and self._answer is None:
            self._answer = self._processes.all_reduce_max_later([self._received])

    def agree(self) -> None:
        """Shares the answers of all processes, asked before or now, with each of them."""
        self.ask()
        if self._answer is not None:
            self.signum, self._answer = int(self._answer()[0]) or None, None

    def end(self, message: str) -> NoReturn:
        """Ends the run as the signal would have: KeyboardInterrupt with `message`, or exit status 143 or 129.

        Raises:
            KeyboardInterrupt: for SIGINT; what scripts and notebooks expect of Ctrl-C. Python exits with 130. Of
                several processes the first prints `message` alone, and none prints a traceback.
            SystemExit: for SIGTERM with 143, for SIGHUP with 129, after printing `message`.
        """
        message = message if self._speaks else ""
        if self.signum not in (None, signal.SIGINT):
            if message:
                tqdm.write(message, file=sys.stderr)  # print would continue the line of a bar
            raise SystemExit(128 + self.signum)
        interrupt = KeyboardInterrupt(message)
        if self._processes is not None:  # each would print a traceback
            sys.excepthook = functools.partial(_print_message, interrupt.args, sys.excepthook)
        raise interrupt


def _print_message(args: tuple[str], otherwise: Callable[..., Any], *raised: Any) -> None:
    """Prints the message alone if the error with `args` was raised, calls `otherwise` if another error was.

    The error itself has a traceback, and would keep the model in memory after a script has caught it.
    """
    if raised[1].args is not args:
        otherwise(*raised)
    elif args[0]:
        print(args[0], file=sys.stderr)


def _end_at_once(signum: int) -> None:
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


@contextlib.contextmanager
def block_signals_during_worker_start(wanted: bool = True, spawns: bool = False) -> Iterator[None]:
    """Blocks the signals that stop a run in processes started inside until they are ready for them.

    A spawned worker imports for seconds before its worker_init_fn; here, signals come when that is done.

    Args:
        spawns: True if the processes are not forked.
    """
    if not wanted or threading.current_thread() is not threading.main_thread() or os.name == "nt":
        yield
        return
    if spawns:  # starts Python's tracker, which the first spawned process does, and up to 3.13.0 unblocks the signals
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_main_process() -> None:
    """Makes a worker of a loader ignore the signals that stop a run, because the run's last step needs it.

    A terminal's Ctrl-C and SIGHUP and a batch system's SIGTERM go to every process of a group. After SIGTERM, which
    also ends a worker that does not end by itself, a worker has `GRACE` seconds.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name != "nt":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _end_soon)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _DEFAULTS)


def _end_soon(signum: int, frame: FrameType | None) -> None:
    # torch raises an error for a worker that fails wherever the main process is, also while that saves a checkpoint
    timer = threading.Timer(GRACE, os._exit, (0,))
    timer.daemon = True
    timer.start()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(GRACE + 2)  # ends a worker that lets no thread run


def how_to_go_on(checkpoint: str, argv: list[str], launcher: Sequence[str] = ("python",)) -> str:
    """Returns the command that resumes the run of a script, or the call if it takes no such flag."""
    flags = [word.partition("=")[0].replace("_", "-") for word in argv]  # HfArgumentParser takes both spellings
    if "--output-dir" not in flags[1:]:
        return f"trainer.train(resume_from_checkpoint={checkpoint!r})"
    left_out = ("--resume-from-checkpoint", "--overwrite-output-dir")
    words = [
        word
        for before, word, flag in zip(["", *argv], argv, flags, strict=False)
        if flag not in left_out and (before.replace("_", "-") not in left_out or word.startswith("--"))
    ]
    return shlex.join([*launcher, *words, "--resume_from_checkpoint", checkpoint])
