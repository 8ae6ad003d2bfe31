"""A run under torchrun of which one process dies once: its second one, after step 10.

`python -m tests.distributed.restarted FOLDER`. A scenario is the same run without a death.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from mps_trainer import Trainer
from tests.conftest import Classifier, callback, examples, weights
from tests.distributed.scenarios import arguments, scenario


def die_once(marker: Path, args: Any, state: Any) -> None:
    if args.process_index == 1 and state.global_step == 10 and marker.exists():
        marker.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@scenario
def a_run_under_torchrun(folder: str) -> dict[str, Any]:
    """Trains, and goes on from the newest checkpoint if there is one."""
    torch.manual_seed(0)
    settings = {"max_steps": 20, "save_strategy": "steps", "save_steps": 4, "ddp_timeout": 30}
    marker = Path(folder, "marker")
    trainer = Trainer(
        Classifier(dropout=0.2),
        arguments(os.path.join(folder, "run"), **settings),
        train_dataset=examples(43),
        callbacks=[callback(on_step_end=lambda args, state, **_: die_once(marker, args, state))],
    )
    trainer.train(resume_from_checkpoint=any(Path(folder, "run").glob("checkpoint-*")) or None)
    return {"weights": weights(trainer.model), "steps": trainer.state.global_step}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.save(a_run_under_torchrun(sys.argv[1]), Path(sys.argv[1], "again.pt"))
