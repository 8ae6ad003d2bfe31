"""Runs of two processes that do not do the same. What each of them raises lies in a folder.

`python -m tests.distributed.differing FOLDER`.
"""

import functools
import os
import sys
import time
from typing import Any

import torch

from mps_trainer import Trainer
from mps_trainer.errors import explanation_of
from tests.conftest import Classifier, callback, examples
from tests.distributed.launch import fork
from tests.distributed.scenarios import arguments

ASKED = {"stop": "should_training_stop", "save": "should_save", "evaluate": "should_evaluate"}
CASES = (*ASKED, "data", "accumulation")
TIMEOUT = 60  # seconds


def ask_on_one(name: str, args: Any, state: Any, control: Any) -> None:
    """Asks for something at step 3, in the second process alone."""
    if state.global_step == 3 and args.process_index == 1:
        setattr(control, name, True)


class OwnLoader(Trainer):
    def get_train_dataloader(self) -> Any:
        own = examples(48 if self.args.process_index == 0 else 12)
        return torch.utils.data.DataLoader(own, batch_size=4, collate_fn=self.data_collator)


def train(case: str, rank: int, folder: str) -> str:
    asks = callback(on_step_end=lambda args, state, control, **_: ask_on_one(ASKED[case], args, state, control))
    settings = {"accumulation": {"gradient_accumulation_steps": 1 + rank}, "data": {"max_steps": -1}}.get(case, {})
    trainer = (OwnLoader if case == "data" else Trainer)(
        Classifier(),
        arguments(os.path.join(folder, case), ddp_timeout=TIMEOUT, **settings),
        train_dataset=examples(43),
        eval_dataset=examples(16),
        callbacks=[asks] if case in ASKED else [],
    )
    try:
        trainer.train()
    except Exception as error:
        return f"{explanation_of(error)}"
    return "nothing was raised"


def run_and_tell(case: str, rank: int, folder: str) -> None:
    with open(os.path.join(folder, f"{case}-{rank}"), "w") as file:
        file.write(train(case, rank, folder))
    other = os.path.join(folder, f"{case}-{1 - rank}")
    while not (os.path.exists(other) and os.path.getsize(other)):  # one that has ended answers no question
        time.sleep(0.1)


if __name__ == "__main__":
    for case in CASES:
        fork(2, functools.partial(run_and_tell, case, folder=sys.argv[1]))
