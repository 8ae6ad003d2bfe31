"""Replaces transformers' Trainer and arguments with this package's.

Libraries imported afterwards build their trainers on them: TRL, sentence-transformers, SetFit.
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

from .arguments.setters import REPLACED
from .errors import MisconfigurationException
from .training_args import TrainingArguments
from .utils.import_watch import stop_watching, watch_imports

LIBRARIES = ("trl", "sentence_transformers", "setfit")  # they make their trainers when they are imported
_TRAINERS = ("Trainer", "TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments")
# transformers runs its own file twice, and a script may hold the first module, which caches the names it has looked up
_TOP_MODULES: list[Any] = []
_MODULES = (  # each defines some of the classes
    "transformers.trainer",
    "transformers.trainer_callback",
    "transformers.training_args",
    "transformers.trainer_seq2seq",
    "transformers.training_args_seq2seq",
)


def _our_classes() -> tuple[type, ...]:
    # remove_callback(ProgressCallback) and add_callback(ProgressCallback) then use ours
    from .callbacks import ProgressCallback
    from .trainer import Trainer
    from .trainer_seq2seq import Seq2SeqTrainer
    from .training_args_seq2seq import Seq2SeqTrainingArguments

    return Trainer, TrainingArguments, Seq2SeqTrainer, Seq2SeqTrainingArguments, ProgressCallback


def replace() -> None:
    """Replaces transformers' classes, each when its module is imported. Importing this module calls it.

    Raises:
        MisconfigurationException: if a library, or the script itself, has taken transformers' classes already.
    """
    is_first = not TrainingArguments._stands_in
    if is_first and (user := _first_user()) is not None:
        raise MisconfigurationException(
            f"mps_trainer.replace_transformers was imported too late: {user} before it, with transformers' own "
            "Trainer. Make `import mps_trainer.replace_transformers` the first import of the script, or restart the "
            "notebook."
        )
    TrainingArguments._stands_in = True
    if is_first:
        # transformers is not imported here: it reads variables that the script may set after this import
        watch_imports(__name__, ("transformers", "mps_trainer"), before=_restore, after=_put_ours)
    _put_ours()
    if is_first and multiprocessing.parent_process() is None:  # a process that loads data imports the script again
        print(
            "mps_trainer: transformers.Trainer and TrainingArguments are now mps_trainer's, also for the libraries "
            "imported from here on.",
            file=sys.stderr,
        )


def undo() -> None:
    """Restores transformers' classes. Libraries imported in between keep the classes that they were built on."""
    TrainingArguments._stands_in = False
    stop_watching(__name__)
    _restore()
    REPLACED.clear()


def _imported() -> list[Any]:
    """Returns the modules of the list that have been imported, and each module that was `transformers` before."""
    top = sys.modules.get("transformers")
    if top is not None and not any(top is each for each in _TOP_MODULES):
        _TOP_MODULES.append(top)
    return [*_TOP_MODULES, *(sys.modules[name] for name in _MODULES if name in sys.modules)]


def _put_ours() -> None:
    """Replaces the classes in all modules of transformers that have been imported."""
    imported = _imported()
    if len(imported) == len(_TOP_MODULES):  # transformers loads these, and torch, when their names are asked for
        return
    for ours in _our_classes():
        name = ours.__name__
        for module in _imported():
            if name in vars(module) and vars(module)[name] is REPLACED.setdefault(name, vars(module)[name]):
                setattr(module, name, ours)


def _restore() -> None:
    """Restores transformers' classes, for good or while it imports modules that build on one another."""
    imported = _imported()
    for ours in _our_classes() if REPLACED else ():
        for module in imported:
            if vars(module).get(ours.__name__) is ours:
                setattr(module, ours.__name__, REPLACED[ours.__name__])


def _first_user() -> str | None:
    """Returns a clause that names what uses transformers' own classes already, or None."""
    for library in LIBRARIES:
        if library in sys.modules:
            return f"{library} was imported"
    own = [value for module in _imported() for value in vars(module).values() if isinstance(value, type)]
    theirs: set[Any] = {value for value in own if value.__name__ in _TRAINERS and value.__module__ in _MODULES}
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if isinstance(value, type) and value in theirs:
            return f"this script imported {name}"
    subclasses: list[type] = [kind for each in theirs for kind in each.__subclasses__() if kind not in theirs]
    for kind in subclasses:
        if getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind:
            return f"{kind.__module__} defined {kind.__name__}"
    return None


if __name__ == "__main__":  # a script after `python -m` would not run, and the exit status be 0
    sys.exit("mps_trainer.replace_transformers is imported by scripts and runs none. Use `mps-trainer run SCRIPT`.")
replace()
