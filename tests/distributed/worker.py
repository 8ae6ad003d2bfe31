"""Several processes, of which each makes all scenarios, or those named, and leaves what came of them in a folder.

`python -m tests.distributed.worker FOLDER SIZE [NAME...]`.
"""

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
from tests.distributed.launch import fork
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


if __name__ == "__main__":
    folder, size, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:] or list(SCENARIOS)
    sys.exit(int(any(fork(size, lambda rank: make(rank, folder, names)))))
