"""Starting several processes that find each other over the loopback interface, as torchrun starts them."""

import functools
import os
import socket
from collections.abc import Callable

import mps_trainer
from tests.faults.forked import end_with

OF_TORCHRUN = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
Variables = Callable[[int, int, int], dict[str, str]]  # of a rank, a size and a port


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


def of_slurm(rank: int, size: int, port: int) -> dict[str, str]:
    """The same of a step that `srun` starts on one node."""
    others = {name: value for name, value in environment(rank, size, port).items() if name not in OF_TORCHRUN}
    return {
        **others,
        "MASTER_PORT": str(port),
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": str(size),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
    }


def fork(size: int, work: Callable[[int], None], variables: Variables = environment) -> list[int]:
    """Calls `work(rank)` in processes that are forked from this one, and returns their exit statuses.

    They have what this one has imported, which takes longer than most of their work.
    """
    port, pids = free_port(), []
    for rank in range(size):
        if (pid := os.fork()) == 0:
            environ = variables(rank, size, port)
            os.environ.clear()
            os.environ.update(environ)
            end_with(functools.partial(work, rank))
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
