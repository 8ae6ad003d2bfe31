"""Replaces transformers' Trainer and arguments with this package's when it is imported.

Libraries imported afterwards build their trainers on them: TRL, sentence-transformers, SetFit.
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import transformers
import transformers.trainer
import transformers.trainer_callback
import transformers.trainer_seq2seq
import transformers.training_args
import transformers.training_args_seq2seq

from .arguments.setters import REPLACED
from .callbacks import ProgressCallback
from .errors import MisconfigurationException
from .trainer import Trainer
from .trainer_seq2seq import Seq2SeqTrainer
from .training_args import TrainingArguments
from .training_args_seq2seq import Seq2SeqTrainingArguments

LIBRARIES = ("trl", "sentence_transformers", "setfit")  # they make their trainers when they are imported
_CLASSES = (Trainer, TrainingArguments, Seq2SeqTrainer, Seq2SeqTrainingArguments)
_MODULES = (
    transformers,
    transformers.trainer,
    transformers.trainer_callback,
    transformers.training_args,
    transformers.trainer_seq2seq,
    transformers.training_args_seq2seq,
)


def replace() -> None:
    """Replaces transformers' classes. Importing this module calls it.

    Raises:
        MisconfigurationException: if a library, or the script itself, has taken transformers' classes already.
    """
    is_first = REPLACED not in vars(transformers)
    if is_first and (user := _first_user()) is not None:
        raise MisconfigurationException(
            f"mps_trainer.replace_transformers was imported too late: {user} before it, with transformers' own "
            "Trainer. Make `import mps_trainer.replace_transformers` the first import of the script, or restart the "
            "notebook."
        )
    for module in _MODULES:
        # kept in transformers' modules: a reload of this module clears its variables, not theirs
        originals = vars(module).setdefault(REPLACED, {})
        # remove_callback(ProgressCallback) and add_callback(ProgressCallback) then use ours
        for ours in (*_CLASSES, ProgressCallback):
            name = ours.__name__
            if module is transformers or name in vars(module):
                originals.setdefault(name, getattr(module, name))
                setattr(module, name, ours)
    TrainingArguments._stands_in = True
    if is_first and multiprocessing.parent_process() is None:  # a process that loads data imports the script again
        print(
            "mps_trainer: transformers.Trainer and TrainingArguments are now mps_trainer's, also for the libraries "
            "imported from here on.",
            file=sys.stderr,
        )


def undo() -> None:
    """Restores transformers' classes. Libraries imported in between keep the classes that they were built on."""
    TrainingArguments._stands_in = False
    for module in _MODULES:
        vars(module).update(vars(module).pop(REPLACED, {}))


def _first_user() -> str | None:
    """Returns a clause that names what uses transformers' own classes already, or None."""
    for library in LIBRARIES:
        if library in sys.modules:
            return f"{library} was imported"
    theirs: list[Any] = [getattr(transformers, ours.__name__) for ours in _CLASSES]
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if any(value is each for each in theirs):
            return f"this script imported {name}"
    subclasses: list[type] = [kind for each in theirs for kind in each.__subclasses__() if kind not in theirs]
    for kind in subclasses:
        if getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind:
            return f"{kind.__module__} defined {kind.__name__}"
    return None


if __name__ == "__main__":  # a script after `python -m` would not run, and the exit status be 0
    sys.exit("mps_trainer.replace_transformers is imported by scripts and runs none. Use `mps-trainer run SCRIPT`.")
replace()
