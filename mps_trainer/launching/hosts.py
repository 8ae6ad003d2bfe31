"""Starts a script on several machines over ssh, one process on each, with torchrun's variables.

Not with `mlx.launch`, which ends with status 0 when a process fails, keeps a core busy, and leaves the processes
running when it is ended.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..devices.facts import RECORDED_VARIABLES
from ..errors import MisconfigurationException
from .processes import shell_status, signals_handled
from .settings import COMMAND

_GRACE = 30.0  # seconds for the others to end, as with torchrun
# Without these, ssh waits for ever for a lost machine, and reports the end of each connection.
_OPTIONS = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2", "-o", "LogLevel=ERROR")
_INTERRUPT = b"\x03"  # Ctrl-C, as typed into the terminal that ssh makes
_NOT_CONNECTED = 255  # the status of ssh


def run_on_hosts(hosts: Sequence[str], command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command on each machine and returns the exit status of the first process that failed, or 128 + signal.

    A first SIGINT or SIGTERM reaches every process, and the run can save. SIGHUP, of a terminal that closes, and a
    second signal end all at once.

    Args:
        hosts: names of the machines, as ssh takes them. Those of this machine need no ssh.
        environ: the variables of the script; those that change how a run trains are set on every machine.

    Raises:
        MisconfigurationException: if MLX is not installed, or a machine is unknown.
    """
    if importlib.util.find_spec("mlx") is None:
        raise MisconfigurationException(
            "--hosts trains over MLX, which is not installed. On each machine: python -m pip install "
            "'mps_trainer[several-macs]'."
        )
    processes = _start(hosts, command, environ)
    asked: list[int] = []

    def send(signum: int) -> None:
        for each in processes:
            _send(each, signum)

    def first_failed() -> int | None:
        return next((rank for rank, each in enumerate(processes) if each.poll()), None)

    def pass_on(signum: int, frame: Any) -> None:
        send(signal.SIGKILL if asked else signum)
        asked.append(signum)

    failed, end = None, float("inf")
    with signals_handled(pass_on):
        while any(each.poll() is None for each in processes):
            time.sleep(0.1)
            if failed is None and (failed := first_failed()) is not None:
                end = time.monotonic() + _GRACE
                if not asked:
                    send(signal.SIGTERM)
            elif time.monotonic() > end:
                send(signal.SIGKILL)
    failed = first_failed() if failed is None else failed
    if failed is None:
        return 0
    if asked:
        return 128 + asked[0]
    status = shell_status(processes[failed].returncode)
    why = f" Try `ssh {hosts[failed]} true`." if status == _NOT_CONNECTED else ""
    print(
        f"mps-trainer: process {failed} of {len(hosts)}, on {hosts[failed]}, ended with status {status}, which ended "
        f"the run.{why}",
        file=sys.stderr,
    )
    return status


def _start(hosts: Sequence[str], command: Sequence[str], environ: Mapping[str, str]) -> list[subprocess.Popen[bytes]]:
    """Starts the processes, each in a session of its own, so that Ctrl-C in a terminal reaches this one only."""
    addresses = addresses_of(hosts)
    with socket.socket() as probe:  # a port that is free here is most likely free on the first machine
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    shared = {name: environ[name] for name in (*RECORDED_VARIABLES, COMMAND) if name in environ}
    processes = []
    for rank, (host, address) in enumerate(zip(hosts, addresses, strict=True)):
        variables = {
            "WORLD_SIZE": str(len(hosts)),
            "RANK": str(rank),
            "LOCAL_RANK": str(addresses[:rank].count(address)),
            "LOCAL_WORLD_SIZE": str(addresses.count(address)),
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": str(port),
        }
        started, known = list(command), {**environ, **variables}
        if not _is_of_this_machine(address):
            line = shlex.join(
                ["env", *(f"{name}={value}" for name, value in {**shared, **variables}.items()), *command]
            )
            place = f"stty -echo -opost; cd {shlex.quote(os.getcwd())} && exec {line}"
            started, known = ["ssh", "-tt", *_OPTIONS, host, place], dict(os.environ)
        processes.append(subprocess.Popen(started, env=known, stdin=subprocess.PIPE, start_new_session=True))
    return processes


def _send(process: subprocess.Popen[bytes], signum: int) -> None:
    """Sends a signal to a process here or on another machine; there SIGKILL and SIGHUP end its terminal."""
    with contextlib.suppress(OSError):  # it has ended
        if process.args[0] != "ssh":  # type: ignore[index]
            process.send_signal(signum)
        elif signum in (signal.SIGKILL, signal.SIGHUP):
            process.terminate()
        elif process.stdin is not None:
            os.write(process.stdin.fileno(), _INTERRUPT)


def addresses_of(hosts: Sequence[str]) -> list[str]:
    """Returns the IPv4 address that each name has here.

    Raises:
        MisconfigurationException: for an unknown name, or one that means this machine to itself only.
    """
    if len(hosts) < 2:
        raise MisconfigurationException(
            f"--hosts {hosts[0]} names one machine. Name two or more, such as mac1.local,mac2.local, or leave it out."
        )
    addresses = []
    for host in hosts:
        try:
            addresses.append(str(socket.getaddrinfo(host.rpartition("@")[2] or "?", None, socket.AF_INET)[0][4][0]))
        except (OSError, UnicodeError) as error:
            raise MisconfigurationException(
                f"--hosts: {host!r} has no address ({error}). Give the names of machines in this network, such as "
                "mac1.local,mac2.local, or their IPv4 addresses."
            ) from error
    loopback = [host for host, address in zip(hosts, addresses, strict=True) if address.startswith("127.")]
    if 0 < len(loopback) < len(hosts):
        raise MisconfigurationException(
            f"--hosts: {loopback[0]!r} is a loopback address, which the other machines cannot reach. Give this "
            "machine's name in the network, such as mac1.local."
        )
    return addresses


def _is_of_this_machine(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True
