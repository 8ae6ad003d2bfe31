"""Checks that this machine can start the processes of a script, and starts several with torchrun."""

from __future__ import annotations

import contextlib
import importlib.machinery
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..devices import ACCELERATORS, Decision, DeviceRequest, MachineFacts, resolve
from ..errors import MisconfigurationException
from .settings import Settings


def check_module(name: str, folder: str) -> None:
    """Raises MisconfigurationException if the first part of a module's name is not found."""
    first = name.partition(".")[0]
    is_known = first in sys.builtin_module_names or first in sys.stdlib_module_names
    if not is_known and importlib.machinery.PathFinder.find_spec(first, [folder, *sys.path]) is None:
        raise MisconfigurationException(
            f"There is no module {first!r} in this folder or among the installed packages. Name a module, or leave "
            "-m out to run a file."
        )


def check_machine(settings: Settings, facts: MachineFacts, source: str) -> Decision:
    """Returns the device of each process on a machine with these facts.

    Raises:
        MisconfigurationException: if the machine cannot start the processes on the device. `source`, the file or the
            flag of the settings, is named.
    """
    device, count = settings.get("device", "auto"), settings.get("num_processes", 1)
    is_named = device not in ("auto", "cpu")
    try:
        decision = resolve(DeviceRequest(accelerator=device if is_named else "auto"), facts)
    except MisconfigurationException as error:
        raise MisconfigurationException(f"{source}: {error}" if is_named else str(error)) from error
    if count > 1 and decision.type == "mps":
        raise MisconfigurationException(
            f"{source}: {count} processes on mps. A Mac has one GPU, which they would share without being faster. "
            f"Take --num_processes 1 with larger batches, --cpu to run {count} processes on the CPU, or --hosts to "
            "train on several Macs."
        )
    if (objection := too_many(count, decision.type, facts)) is not None:
        raise MisconfigurationException(f"{source}: {objection}")
    return decision


def too_many(count: int, kind: str, facts: MachineFacts) -> str | None:
    """Returns an objection to `count` processes on a kind of device, or None."""
    most = ACCELERATORS[kind].count(facts)
    if kind == "cpu" or count <= most:
        return None
    return (
        f"{count} processes take one {kind} device each, and this machine has {most}. Take at most {most}, or the CPU."
    )


@contextlib.contextmanager
def signals_handled(numbers: Iterable[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Calls `handler` for signals inside, except for those that are ignored, as SIGHUP under nohup."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in (number for number, earlier in before.items() if earlier != signal.SIG_IGN):
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def shell_status(code: int) -> int:
    """Returns the exit status of a process as a shell has it: 128 plus the number of a signal that ended it."""
    return code if code >= 0 else 128 - code


def torchrun(script: Sequence[str], count: int) -> int:
    """Runs the script in several processes and returns the exit status of the first that failed, or 128 + signal.

    Each is in a session of its own, so that Ctrl-C in a terminal reaches it once, from torchrun, which waits half a
    minute for it to end.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # the address is given because the host name of a Mac need not resolve
    where = ["--standalone", "--local_addr", "127.0.0.1", "--nproc_per_node", str(count)]
    try:
        run(parse_args([*where, *script]))
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except ChildFailedError as failed:
        # torchrun ends the others with SIGTERM; or they fail because one was killed, and may get the same time
        failures = {rank: each for rank, each in failed.failures.items() if each.exitcode != -signal.SIGTERM}
        failures = failures or failed.failures
        rank = min(failures, key=lambda rank: (failures[rank].exitcode >= 0, failures[rank].timestamp))
        status = shell_status(failures[rank].exitcode)
        print(
            f"mps-trainer: process {rank} of {count} ended with status {status}, which ended the run.", file=sys.stderr
        )
        return status
    return 0
