"""Starts the runs of a series as forks of this process, which has imported what they need.

A start takes no seconds then. Nothing may have been computed with torch here: a fork has none of its threads.
"""

import faulthandler
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mps_trainer import cli
from tests.faults import restarted

_Popen = subprocess.Popen
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def preload() -> None:
    """Imports what scripts import, except the libraries that `mps-trainer run` has to come before."""
    import accelerate
    import datasets
    import torch._dynamo  # noqa: F401 - optimizers import it when they are made
    import transformers

    import mps_trainer

    _ = accelerate, datasets, transformers.Trainer, transformers.TrainingArguments, mps_trainer.Trainer


class Forked(_Popen):  # type: ignore[type-arg]
    """A Python process of `python -m mps_trainer ...` or `python SCRIPT ...` that is forked."""

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        environ = given[5]
        if (pid := os.fork()) == 0:
            os.setsid()
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL if each != signal.SIGINT else signal.default_int_handler)
            os.environ.clear()
            os.environ.update(environ)
            if "PYTHONFAULTHANDLER" in environ:
                faulthandler.enable()
            end_with(lambda: _main(list(args)))
        self.pid, self._child_created = pid, True


def _main(command: list[str]) -> int:
    subprocess.Popen = _Popen  # type: ignore[misc]
    if restarted.GIVEN in os.environ:
        restarted.start_with_faults()
    if command[1:3] == ["-m", "mps_trainer"]:
        return cli.main(command[3:])
    sys.argv = command[1:]
    runpy.run_path(command[1], run_name="__main__")
    return 0


def run(command: Sequence[str], environ: Mapping[str, str], log: Path, timeout: float) -> tuple[int, str]:
    """Runs a command of this package, and the processes that it starts, as forks; returns its status and output."""
    if (pid := os.fork()) == 0:
        with open(log, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(environ)
        if "--restarts" in command:
            subprocess.Popen = Forked  # type: ignore[misc]
            end_with(lambda: cli.main(list(command[3:])))
        end_with(lambda: _main(list(command)))
    ends = time.monotonic() + timeout
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > ends:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(found[1]), log.read_text(errors="replace")


def end_with(main: Callable[[], int | None]) -> None:
    """Ends this process with the status that `main` returns, as the interpreter ends a program."""
    status = 1
    try:
        status = main() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
