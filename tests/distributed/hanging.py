"""A run of three processes in which one sleeps for good in a callback, and one is stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from transformers import TrainerCallback

from mps_trainer import Trainer
from tests.conftest import Classifier, examples
from tests.distributed.scenarios import arguments

TIMEOUT = 20  # seconds; on a machine that is busy it has to be enough for all to start


class StayAway(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3 and args.process_index == 1:
            time.sleep(600)
        if state.global_step == 3 and args.process_index == 2:
            os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    args = arguments(sys.argv[1], ddp_timeout=TIMEOUT)
    Trainer(Classifier(), args, train_dataset=examples(43), callbacks=[StayAway()]).train()
