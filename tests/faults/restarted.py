"""The script of `tests.faults.restarts`: written for transformers' Trainer, it says nothing of resuming.

Arguments: a folder, a variant and a device of `tests.faults.training`, and faults as JSON, one for each start: a kind
and the number of the operator at which it happens.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import on_device  # before torch, so that its build for CUDA can simulate the device

# isort: split
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from mps_trainer.launching.restarts import Supervision
from tests.faults import training

OUTCOME, WEIGHTS = "outcome.json", "weights.safetensors"
GIVEN = "FAULTS_OF_A_SCRIPT"  # folder, device and faults as JSON, of a script that is run unchanged
NO_MEMORY = "MPS backend out of memory (MPS allocated: 1.00 GiB, other allocations: 1.00 MiB, max allowed: 1.00 GiB)."
GPU_FAULT = "MPS command buffer execution failed: Caused GPU Timeout Error (kIOGPUCommandBufferCallbackErrorTimeout)"


def raise_error(message: str) -> None:
    raise RuntimeError(message)


FAULTS: dict[str, Callable[[], Any]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGABRT": os.abort,
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(10_000),
    "memory": lambda: raise_error(NO_MEMORY),
    "GPU fault": lambda: raise_error(GPU_FAULT),
}
OF_MEMORY = ("SIGKILL", "memory")  # after these, the run trains on half the examples at a time


class Faulty(TorchDispatchMode):
    """Counts operators, and lets a fault happen at one of them."""

    def __init__(self, kind: str | None = None, at: int = 0) -> None:
        super().__init__()
        self.kind, self.at, self.count = kind, at, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.kind is not None and self.count == self.at:
            FAULTS[self.kind]()
        return func(*args, **(kwargs or {}))


def inject(folder: Path, faults: list[tuple[str, int]]) -> None:
    """Lets the fault of this start happen in `train()` of any Trainer, which leaves its outcome in `folder`."""
    from mps_trainer.trainer import Trainer

    supervision = Supervision.of(os.environ)
    start = 0 if supervision is None else len(supervision.restarts)
    undisturbed = Trainer.train

    def train(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        with Faulty(*faults[start] if start < len(faults) else ()) as faulty:
            output = undisturbed(self, *args, **kwargs)
        result = {**training.outcome(self), "operators": faulty.count, "starts": start + 1}
        save_file({name: tensor.cpu().clone() for name, tensor in self.model.state_dict().items()}, folder / WEIGHTS)
        (folder / OUTCOME).write_text(json.dumps(result))
        return output

    Trainer.train = train  # type: ignore[method-assign]


def start_with_faults() -> None:
    """Prepares this process for a script that is run unchanged, before Python runs it."""
    given = json.loads(os.environ[GIVEN])
    torch.set_num_threads(1)
    on_device(given["device"]).__enter__()
    inject(Path(given["folder"]), given["faults"])


def main(folder: Path, variant: str, device: str, faults: list[tuple[str, int]], has_dropout: bool) -> None:
    import mps_trainer.replace_transformers  # noqa: F401 - `mps-trainer launch` leaves that to the script

    torch.set_num_threads(1)
    with on_device(device):
        inject(folder, faults)
        trainer = training._trainer("transformers", folder / "out", training.VARIANTS[variant], device)
        assert type(trainer).__module__ == "mps_trainer.trainer"
        if not has_dropout:  # the elements that it drops depend on the examples in a batch
            trainer.model.dropout.p = 0.0
        trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), sys.argv[5] == "dropout")
