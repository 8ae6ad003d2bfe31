"""Starting several processes that find each other over the loopback interface, as torchrun starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import mps_trainer


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Of one of `size` processes on one machine."""
    return {
        **os.environ,
        "PYTHONPATH": os.path.dirname(os.path.dirname(mps_trainer.__file__)),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(size: int, *command: str) -> list[subprocess.Popen[str]]:
    """Python with `command`, in `size` processes."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment(rank, size, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def run(size: int, *command: str, timeout: int = 240) -> list[str]:
    """What each of the processes printed; all of them have to end well."""
    processes = start(size, *command)
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * size, outputs
    return outputs
