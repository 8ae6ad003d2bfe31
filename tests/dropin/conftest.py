"""Runs of the same code with transformers' Trainer and with this package's."""

import functools
import inspect
import operator
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import mps_trainer
from tests.conftest import callback, without_times
from tests.tiny import tiny

# Its name in transformers 5.20, the last for Python 3.10, was the second.
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if hasattr(transformers.TrainingArguments, name)
)
OF_TRAINER = inspect.signature(transformers.Trainer).parameters.keys()


@dataclass(frozen=True)
class Library:
    """The module that Trainer and TrainingArguments come from, and an output folder for its runs."""

    module: Any
    folder: Path
    prefix: str = ""  # of the classes' names

    @property
    def is_ours(self) -> bool:
        return self.module is mps_trainer

    def kind(self, name: str) -> Any:
        return getattr(self.module, self.prefix + name)

    def args(self, **settings: Any) -> Any:
        """Returns arguments for a quiet run on the CPU that logs each step and saves only if `settings` say so."""
        quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no"}
        return self.kind("TrainingArguments")(output_dir=str(self.folder), **{**quiet, **settings})

    def trainer(self, model: Any = None, *, kind: type | None = None, **settings: Any):
        """Returns a Trainer, or one of `kind`; settings go to it or to its arguments, by their names."""
        given = {"train_dataset": sentences(), "eval_dataset": sentences(8, seed=1)}
        given |= {name: settings.pop(name) for name in OF_TRAINER & settings.keys()}
        if "model_init" not in given:
            given["model"] = bert_classifier() if model is None else model
        return (kind or self.kind("Trainer"))(args=self.args(**settings), **given)

    def trained(self, model: Any = None, *, resume: Any = None, evaluate: bool = False, **how: Any):
        """Returns a Trainer, made with `how` as by `trainer()`, that has trained and, if asked, evaluated."""
        trainer = self.trainer(model, **how)
        trainer.train(resume_from_checkpoint=str(resume) if isinstance(resume, Path) else resume)
        if evaluate:
            trainer.evaluate()
        return trainer


@pytest.fixture(params=[transformers, mps_trainer], ids=["transformers", "mps_trainer"])
def library(request, tmp_path: Path) -> Library:
    """Each of the two packages, for what both have to do alike."""
    return Library(request.param, tmp_path)


@pytest.fixture
def both(tmp_path: Path) -> Callable[[Callable[[Library], Any]], tuple[Any, Any]]:
    """`both(run)` returns what `run(library)` returns with transformers and with this package, from the same seeds."""

    def run_both(run: Callable[[Library], Any]) -> tuple[Any, Any]:
        results = []
        for module in (transformers, mps_trainer):
            transformers.set_seed(0)
            results.append(run(Library(module, tmp_path / module.__name__)))
        return results[0], results[1]

    return run_both


@pytest.fixture
def assert_same_runs(both) -> Callable[[Callable[[Library], Any]], Any]:
    """`assert_same_runs(run)`: what `run(library)` returns is the same. Returns this package's."""

    def check(run: Callable[[Library], Any], tolerance: float = 1e-5) -> Any:
        theirs, ours = both(run)
        assert_same(ours, theirs, tolerance)
        return ours

    return check


def bert_classifier(labels: int = 2) -> Any:
    """Returns a BERT of two layers with random weights, the same at each call."""
    return tiny("BertForSequenceClassification", num_labels=labels)


def gpt2() -> Any:
    """Returns a GPT-2 of two layers with random weights, the same at each call."""
    return tiny("GPT2LMHeadModel", bos_token_id=1, eos_token_id=2)


def sentences(count: int = 24, length: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    """Returns rows of tokens with one of two labels. The last tokens of some rows are padding."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(3, 64, (count, length), generator=generator)
    ends = torch.randint(length // 2, length + 1, (count,), generator=generator)
    mask = (torch.arange(length) < ends[:, None]).long()
    return [
        {"input_ids": row * kept, "attention_mask": kept, "labels": int(row[0] % 2)}
        for row, kept in zip(rows, mask, strict=True)
    ]


def texts(count: int = 24, length: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    """Returns rows of tokens to continue. Padding is no target."""
    return [
        {**row, "labels": torch.where(row["attention_mask"] == 1, row["input_ids"], -100)}
        for row in sentences(count, length, seed)
    ]


def recorder(events: list[tuple], signal_at: int | None = None) -> transformers.TrainerCallback:
    """Returns a callback that adds each event to `events`, and sends SIGTERM to this process at one of them.

    An event has the position of the run, the arguments passed, and the flags that the control has set.
    """

    def note(event: str, args: Any, state: Any, control: Any, **given: Any) -> None:
        given["optimizer"] = getattr(given["optimizer"], "optimizer", given["optimizer"])  # Accelerate wraps it
        details = {
            name: operator.length_hint(value, -1) if name.endswith("dataloader") else type(value).__name__
            for name, value in given.items()
        }
        asked = sorted(name for name, value in vars(control).items() if value)
        events.append((event, state.global_step, state.epoch, sorted(details.items()), asked))
        if len(events) == signal_at:
            os.kill(os.getpid(), signal.SIGTERM)

    names = [name for name in dir(transformers.TrainerCallback) if name.startswith("on_")]
    return callback(**{name: functools.partial(note, name) for name in names})


def assert_close_weights(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours.model.state_dict(), theirs.model.state_dict(), atol=1e-6, rtol=0)


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-5, resumed: bool = False) -> None:
    """Asserts that results and all that they hold are equal, Trainers by their logs. Times are not compared.

    Names are in the same order, but for logs of a run that was `resumed`: those of a checkpoint's file are sorted.
    """
    if isinstance(theirs, transformers.Trainer):
        assert_same(ours.state.log_history, theirs.state.log_history, tolerance)
    elif isinstance(theirs, dict):
        assert (sorted if resumed else list)(ours) == (sorted if resumed else list)(theirs)
        for name, value in without_times([theirs])[0].items():
            assert_same(ours[name], value, tolerance)
    elif isinstance(theirs, (list, tuple)):
        assert (type(ours).__name__, len(ours)) == (type(theirs).__name__, len(theirs))
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other, tolerance, resumed)
    elif isinstance(theirs, (torch.Tensor, np.ndarray)):
        assert (type(ours), ours.dtype) == (type(theirs), theirs.dtype)
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=tolerance, nan_ok=True)
    else:
        assert ours == theirs
