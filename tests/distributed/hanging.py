"""A run of three processes in which one sleeps for good in a callback, and one is stopped or killed.

`python -m tests.distributed.hanging FOLDER`: processes 1 and 2 do not come to step 4. `... FOLDER RANK STEP`: that one
process kills itself in that step.
"""

import os
import signal
import sys
import time
from typing import Any

from mps_trainer import simulator  # before torch, so that its build for CUDA can simulate the device

# isort: split
from transformers import TrainerCallback

from mps_trainer import Trainer
from tests.conftest import Classifier, callback, examples
from tests.distributed.scenarios import arguments

TIMEOUT = 20  # seconds; on a machine that is busy it has to be enough for all to start


class StayAway(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3 and args.process_index == 1:
            time.sleep(600)
        if state.global_step == 3 and args.process_index == 2:
            os.kill(os.getpid(), signal.SIGSTOP)


def die(args: Any, state: Any, **_: Any) -> None:
    if [args.process_index, state.global_step] == [int(word) for word in sys.argv[2:]]:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if os.environ.get("TRAINS_ON") == "mps":
        simulator.activate()
    ends = callback(on_step_end=die) if sys.argv[2:] else StayAway()
    args = arguments(sys.argv[1], ddp_timeout=TIMEOUT)
    Trainer(Classifier(), args, train_dataset=examples(43), callbacks=[ends]).train()
