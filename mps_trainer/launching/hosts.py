"""Starts a script on several machines over ssh, with `mlx.launch`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from ..devices.facts import RECORDED_VARIABLES
from ..errors import MisconfigurationException

_FAILED = re.compile(rb"Node with rank (\d+) exited with code (-?\d+)")  # mlx.launch itself ends with status 0
_INTERRUPT = b"\x03"  # Ctrl-C, as a terminal has it
_NOT_CONNECTED = 255  # the status of ssh


def mlx_launch(hosts: Sequence[str], words: Sequence[str], module: bool, environ: Mapping[str, str]) -> int:
    """Runs the script on each machine and returns the exit status of the first process that failed, or 128 + signal.

    A first SIGINT or SIGTERM reaches every process, and the run can save. A second one ends all at once.

    Args:
        hosts: names of the machines, as ssh takes them. A name of this machine needs no ssh.
        environ: the variables of the script; those that change how a run trains are set on every machine.

    Raises:
        MisconfigurationException: if MLX is not installed, or a machine is unknown.
    """
    import psutil

    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    if (program := shutil.which("mlx.launch", path=places)) is None:
        raise MisconfigurationException(
            "--hosts starts processes with mlx.launch, and MLX is not installed. On each machine: python -m pip "
            "install 'mps_trainer[several-macs]'."
        )
    machines = host_file(hosts)
    variables = [f"--env={name}={environ[name]}" for name in RECORDED_VARIABLES if name in environ]
    failed, tail = None, b""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(machines, file)
        file.flush()
        where = ["--backend=ring", f"--hostfile={file.name}", f"--cwd={os.getcwd()}", f"--python={sys.executable}"]
        command = [program, *where, *variables, "--", *(["-m"] if module else []), *words]
        # in a session of its own: Ctrl-C in a terminal would end ssh before the others have saved
        process: Any = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        asked: list[int] = []

        def pass_on(signum: int, frame: Any) -> None:
            with contextlib.suppress(psutil.Error, OSError):  # all have ended
                if asked:
                    os.killpg(process.pid, signal.SIGTERM)
                asked.append(signum)
                os.write(process.stdin.fileno(), _INTERRUPT)  # mlx.launch types it into the terminals of ssh
                for child in psutil.Process(process.pid).children():
                    if child.name() != "ssh":
                        child.send_signal(signum)

        before = {each: signal.signal(each, pass_on) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            while chunk := process.stderr.read1():
                sys.stderr.buffer.write(chunk)
                sys.stderr.flush()
                tail = (tail + chunk)[-1000:]
                failed = failed or _FAILED.search(tail)
            status = process.wait()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
    if failed is not None:
        rank, status = int(failed[1]), int(failed[2])
    status = status if status >= 0 else 128 - status  # as a shell has it
    if failed is not None:
        unreachable = f" Try `ssh {hosts[rank]} true`." if status == _NOT_CONNECTED else ""
        print(
            f"mps-trainer: process {rank} of {len(hosts)}, on {hosts[rank]}, ended with status {status}, which ended "
            f"the run.{unreachable}",
            file=sys.stderr,
        )
    return status


def host_file(hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the content of mlx.launch's host file, with the IPv4 address that each name has here.

    Raises:
        MisconfigurationException: for an unknown name, or one that means this machine to itself only.
    """
    machines = []
    for host in hosts:
        try:
            address = str(socket.getaddrinfo(host.rpartition("@")[2] or "?", None, socket.AF_INET)[0][4][0])
        except (OSError, UnicodeError) as error:
            raise MisconfigurationException(
                f"--hosts: {host!r} has no address ({error}). Give the names of machines in this network, such as "
                "mac1.local,mac2.local, or their IPv4 addresses."
            ) from error
        machines.append({"ssh": "127.0.0.1" if _is_of_this_machine(address) else host, "ips": [address]})
    loopback = [host for host, machine in zip(hosts, machines, strict=True) if machine["ips"][0].startswith("127.")]
    if 0 < len(loopback) < len(hosts):
        raise MisconfigurationException(
            f"--hosts: {loopback[0]!r} is a loopback address, which the other machines cannot reach. Give this "
            "machine's name in the network, such as mac1.local."
        )
    return machines


def _is_of_this_machine(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True
