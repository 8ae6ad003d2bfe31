"""Starts a script: in place of this process, or in several processes with torchrun."""

from __future__ import annotations

import importlib.machinery
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..devices import ACCELERATORS, Decision, DeviceRequest, MachineFacts, gather_facts, resolve
from ..devices.facts import LAUNCHER_INTEGERS
from ..devices.slurm import TASKS
from ..errors import MisconfigurationException
from .settings import LaunchSettings


def check_module(name: str, folder: str) -> None:
    """Raises MisconfigurationException if there is no such module. Of a dotted name the first part is looked for."""
    first = name.partition(".")[0]
    known = first in sys.builtin_module_names or first in sys.stdlib_module_names
    if not known and importlib.machinery.PathFinder.find_spec(first, [folder, *sys.path]) is None:
        raise MisconfigurationException(
            f"There is no module {first!r} in this folder or among the installed packages. Name a module, or leave "
            "-m out to run a file."
        )


def command_line(words: Sequence[str], module: bool) -> list[str]:
    """Returns the command that runs a script or a module, as one would type it."""
    return [sys.executable, *(["-m"] if module else []), *words]


def check_machine(settings: LaunchSettings, environ: Mapping[str, str], source: str) -> None:
    """Checks that this machine can start the processes on the device, before any is started.

    Args:
        environ: the script's environment.
        source: the file or the flags of the settings, for errors.

    Raises:
        MisconfigurationException: if it cannot.
    """
    if settings.num_processes in (None, 1) and settings.device in (None, "auto", "cpu"):
        return  # without an import of torch
    alone = {name: value for name, value in environ.items() if name not in (*LAUNCHER_INTEGERS, TASKS)}
    check_facts(settings, gather_facts(environ=alone), source)


def check_facts(settings: LaunchSettings, facts: MachineFacts, source: str) -> Decision:
    """Returns the device of each process on a machine with these facts. Raises as `check_machine`."""
    named = settings.device if settings.device not in (None, "auto", "cpu") else None
    try:
        decision = resolve(DeviceRequest(accelerator=named or "auto"), facts)
    except MisconfigurationException as error:
        raise MisconfigurationException(f"{source}: {error}" if named else str(error)) from error
    count = settings.num_processes or 1
    if count > 1 and decision.type == "mps":
        raise MisconfigurationException(
            f"{source}: {count} processes on mps. A Mac has one GPU, and no torch.distributed backend reaches it, so "
            f"mps trains in one process. Either take --num_processes 1, or --cpu to run {count} processes on the CPU."
        )
    if (objection := too_many(count, decision.type, ACCELERATORS[decision.type].count(facts))) is not None:
        raise MisconfigurationException(f"{source}: {objection}")
    return decision


def too_many(count: int, kind: str, there_are: int) -> str | None:
    """Returns an objection to `count` processes on `there_are` devices of a kind, or None."""
    if kind == "cpu" or count <= there_are:
        return None
    return (
        f"{count} processes take one {kind} device each, and this machine has {there_are}. Take at most {there_are}, "
        "or the CPU."
    )


def become(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Replaces this process by the script, which then receives signals itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environ)


def torchrun(words: Sequence[str], module: bool, count: int) -> int:
    """Runs the script in several processes and returns the exit status of the first that failed, or 128 + signal.

    Each is in a session of its own, so that Ctrl-C in a terminal reaches it once, from torchrun, which waits half a
    minute for it to end.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(torchrun_words(words, module, count)))
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        status = shell_status(failure.exitcode)
        print(
            f"mps-trainer: process {rank} of {count} ended with status {status}, which ended the run.", file=sys.stderr
        )
        return status
    return 0


def torchrun_words(words: Sequence[str], module: bool, count: int) -> list[str]:
    """Returns the command line of torchrun. It has an address, as the host name of a Mac need not resolve."""
    where = ["--standalone", "--local_addr", "127.0.0.1", "--nproc_per_node", str(count)]
    return [*where, *(["--module"] if module else []), *words]


def shell_status(code: int) -> int:
    """Returns the exit status as a shell has it: 128 + signal where Python has a negative number."""
    return code if code >= 0 else 128 + signal.Signals(-code)
