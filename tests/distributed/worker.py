"""Several processes, of which each makes all scenarios, or those named, and leaves what came of them in a folder.

`python -m tests.distributed.worker SIZE FOLDER [NAME...]`. They are forked from this one, which has imported what they
need: that takes longer than most scenarios do.
"""

from __future__ import annotations

import os
import sys
import traceback

from mps_trainer import simulator  # before torch, so that its build for CUDA can simulate the device

# isort: split
import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp

from tests.distributed import collectives, messages, sharding, signals  # noqa: F401  add their scenarios
from tests.distributed.launch import environment, free_port
from tests.distributed.scenarios import SCENARIOS


def make(rank: int, folder: str, names: list[str]) -> None:
    if os.environ.get("TRAINS_ON") == "mps":
        simulator.activate(same_draws_as_cpu=True)
    for name in names:
        try:
            came = SCENARIOS[name](os.path.join(folder, name))
        except Exception:
            came = {"error": traceback.format_exc()}
        torch.save(came, os.path.join(folder, f"{name}-{rank}.pt"))


def forked(rank: int, size: int, port: int, folder: str, names: list[str]) -> int:
    """The id of the process of this rank."""
    if (pid := os.fork()) != 0:
        return pid
    status = 1
    try:
        os.environ.update(environment(rank, size, port))
        make(rank, folder, names)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    size, folder, names, port = int(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(SCENARIOS), free_port()
    processes = [forked(rank, size, port, folder, names) for rank in range(size)]
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in processes]
    sys.exit(int(any(ended)))
