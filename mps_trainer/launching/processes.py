"""Checks that this machine can start the processes of a script, and starts several with torchrun."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..devices import ACCELERATORS, Decision, DeviceRequest, MachineFacts, resolve
from ..errors import MisconfigurationException
from .restarts import REQUESTS
from .settings import Settings


def check_machine(settings: Settings, facts: MachineFacts) -> Decision:
    """Returns the device of each process on a machine with these facts.

    Raises:
        MisconfigurationException: if the machine cannot start the processes on the device.
    """
    count = settings["num_processes"]
    decision = resolve(DeviceRequest(accelerator=settings["device"]), facts)
    if count > 1 and decision.type == "mps":
        raise MisconfigurationException(
            f"{count} processes on mps. A Mac has one GPU, which they would share without being faster. Take "
            f"--num_processes 1 with larger batches, --cpu to run {count} processes on the CPU, or --hosts to train "
            "on several Macs."
        )
    most = ACCELERATORS[decision.type].count(facts)
    if count > most and decision.type != "cpu":
        raise MisconfigurationException(
            f"{count} processes take one {decision.type} device each, and this machine has {most}. Take at most "
            f"{most}, or the CPU."
        )
    return decision


@contextlib.contextmanager
def signals_handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Calls `handler` for requests to end inside, except for ignored ones, as SIGHUP under nohup."""
    before = {each: signal.signal(each, handler) for each in REQUESTS if signal.getsignal(each) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def shell_status(code: int) -> int:
    """Returns the exit status of a process as a shell has it: 128 plus the number of a signal that ended it."""
    return code if code >= 0 else 128 - code


def status_of_signal(status: int) -> int:
    """Converts the status that a shell or a launcher returns into the process's own, negative for a signal."""
    return 128 - status if 128 < status <= 128 + 64 else status


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
    is_module = script[0] == "-m"
    try:
        # without --, torchrun would refuse a flag of the script that abbreviates two of its own
        run(parse_args([*where, *script[:is_module], "--", *script[is_module:]]))
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
