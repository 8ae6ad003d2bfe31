"""A run under torchrun of which one process dies once: its second one, after the step that the marker names."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from mps_trainer import Trainer
from tests.conftest import Classifier, callback, examples, weights
from tests.distributed.scenarios import arguments


def die_once(args: Any, state: Any, **_: Any) -> None:
    if args.process_index == 1 and marker.exists() and state.global_step == int(marker.read_text()):
        marker.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    marker = folder / "marker"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = {"max_steps": 20, "save_strategy": "steps", "save_steps": 4, "ddp_timeout": 30}
    trainer = Trainer(
        Classifier(dropout=0.2),
        arguments(str(folder / "run"), **settings),
        train_dataset=examples(43),
        callbacks=[callback(on_step_end=die_once)],
    )
    trainer.train(resume_from_checkpoint=any((folder / "run").glob("checkpoint-*")) or None)
    torch.save({"weights": weights(trainer.model), "steps": trainer.state.global_step}, folder / f"{sys.argv[2]}.pt")
