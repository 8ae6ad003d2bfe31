"""Runs of several processes that do not do the same. What each of them raises lies in a folder.

`python -m tests.distributed.differing FOLDER`. One process starts all, because an import takes longer than the runs.
"""

import functools
import json
import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mps_trainer import simulator  # before torch, so that its build for CUDA can simulate the device

# isort: split
import torch

from mps_trainer import Trainer, TrainingArguments
from mps_trainer.errors import explanation_of
from tests.conftest import Classifier, callback, examples
from tests.distributed.launch import fork, of_slurm
from tests.distributed.scenarios import arguments

ASKED = {"stop": "should_training_stop", "save": "should_save", "evaluate": "should_evaluate"}
DIFFERING = (*ASKED, "data", "accumulation")
HANG, SLURM = "hang", "slurm"
KILLED = {"killed-mps": 2, "killed-cpu": 3} if find_spec("mlx") else {}
SIZES = {**dict.fromkeys(DIFFERING, 2), HANG: 3, **KILLED}  # the number of processes


def ask(name: str, args: Any, state: Any, control: Any, **_: Any) -> None:
    if state.global_step == 3 and args.process_index == 1:
        setattr(control, name, True)


def hang(args: Any, state: Any, **_: Any) -> None:
    """Process 1 sleeps for good in a callback, and process 2 is stopped: neither comes to step 4."""
    if state.global_step == 3 and args.process_index == 1:
        time.sleep(600)
    if state.global_step == 3 and args.process_index == 2:
        os.kill(os.getpid(), signal.SIGSTOP)


def die(args: Any, state: Any, **_: Any) -> None:
    if state.global_step == 3 and args.process_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class OwnLoader(Trainer):
    def get_train_dataloader(self) -> Any:
        own = examples(48 if self.args.process_index == 0 else 12)
        return torch.utils.data.DataLoader(own, batch_size=4, collate_fn=self.data_collator)


def train(case: str, rank: int, folder: Path) -> str:
    """Returns the explanation of the error that ends the run."""
    settings = {"accumulation": {"gradient_accumulation_steps": 1 + rank}, "data": {"max_steps": -1}}.get(case, {})
    callbacks = [callback(on_step_end=functools.partial(ask, ASKED[case]))] if case in ASKED else []
    if case == HANG:
        callbacks = [callback(on_step_begin=hang)]
    if case in KILLED:
        callbacks = [callback(on_step_end=die)]
        os.environ.update(DDP_BACKEND="mlx", TRAINS_ON=case.partition("-")[2])
        if os.environ["TRAINS_ON"] == "mps":
            simulator.activate()
    trainer = (OwnLoader if case == "data" else Trainer)(
        Classifier(),
        # seconds that processes wait for the others; all have to start within them, also on a busy machine
        arguments(str(folder / f"{case}-run"), ddp_timeout=20 if case == HANG else 60, **settings),
        train_dataset=examples(43),
        eval_dataset=examples(16),
        callbacks=callbacks,
    )
    try:
        trainer.train()
    except Exception as error:
        return f"{explanation_of(error)}"
    return "nothing was raised"


def run_and_tell(case: str, rank: int, folder: Path) -> None:
    (folder / f"{case}-{rank}.pid").write_text(str(os.getpid()))
    (folder / f"{case}-{rank}").write_text(train(case, rank, folder))
    if case == HANG:
        for other in (1, 2):
            os.kill(int((folder / f"{case}-{other}.pid").read_text()), signal.SIGKILL)
    waiting = [folder / f"{case}-{other}" for other in range(SIZES[case]) if case in DIFFERING or other != 1]
    while case != HANG and not all(each.exists() and each.stat().st_size for each in waiting):
        time.sleep(0.1)  # one that has ended answers no question


def main_process_first(rank: int, folder: Path) -> None:
    """Waits for the main process, whose block takes a while the first two times and fails the third time."""
    args = TrainingArguments(use_cpu=True, ddp_backend="gloo", ddp_timeout=600)
    main = args.process_index == 0
    seen = []
    for number, local in enumerate((True, False)):
        done = folder / f"done-{number}"
        with args.main_process_first(local=local, desc="work"):
            if main:
                time.sleep(0.5)
                done.touch()
            seen.append(done.exists())
    failed = folder / "failed"
    try:
        with args.main_process_first():
            if main:
                failed.touch()
                raise KeyError("the main process fails in its block")
            seen.append(failed.exists())
    except KeyError:
        seen.append(True)
    report = {
        "seen": seen,
        "backend": torch.distributed.get_backend(),
        "device": str(args.device),
        "numbers": [args.world_size, args.process_index, args.local_process_index],
        "main": [args.should_log, args.should_save],
        "mode": args.parallel_mode.value,
    }
    (folder / f"{SLURM}-{rank}").write_text(json.dumps(report))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    given = Path(sys.argv[1])
    for case, size in SIZES.items():
        fork(size, functools.partial(run_and_tell, case, folder=given))
    fork(2, functools.partial(main_process_first, folder=given), of_slurm)
