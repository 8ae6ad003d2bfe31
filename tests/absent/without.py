"""Imports every module, trains, evaluates and runs commands, in a Python from which packages are hidden.

`python -m tests.absent.without` works in the current folder and prints an error of each module and command that fails.
"""

import importlib
import sys
from pathlib import Path

from mps_trainer import cli

SCRIPT = """
import sys
import torch
from mps_trainer import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

rows = [{"x": torch.tensor([i / 9, 1 - i / 9]), "labels": i % 3} for i in range(12)]
args = TrainingArguments(sys.argv[1], disable_tqdm=True, max_steps=2, save_steps=1, logging_steps=1)
trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows)
trainer.train()
assert trainer.evaluate()["eval_loss"] > 0
print("trained in", args.world_size)
"""
# Commands that must all end with status 0.
COMMANDS = (
    "run train.py out",
    "report out",
    "check train.py checked",
    "fit train.py fitted",
    "config --default --config_file config.yaml",
    "config show --config_file config.yaml",
    "doctor",
    "env",
    "example image-classification images",
)


def main() -> None:
    from tests.test_layers import MODULES

    for name in MODULES.keys() - {"mps_trainer.__main__"}:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    Path("train.py").write_text(SCRIPT)
    for command in COMMANDS:
        print(f"{command}: {cli.main(command.split())}")


if __name__ == "__main__":
    main()
