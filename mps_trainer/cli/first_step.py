"""Stops a script at its first training step and traces that step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import transformers.trainer
from transformers.trainer_callback import DefaultFlowCallback, TrainerCallback

from .. import coverage
from ..coverage import CoverageReport, Tracer, trace_step
from ..trainer import Trainer


class StepTraced(BaseException):
    """Ends the script, past every `except Exception`; carries the report."""

    def __init__(self, report: CoverageReport, trainer: Any = None) -> None:
        super().__init__("The first training step has been traced.")
        self.report = report
        self.trainer = trainer  # None for a script that calls coverage.trace


class _StepsDone(BaseException):
    """Ends transformers' train()."""


@contextlib.contextmanager
def stop_at_first_step(batches: int) -> Iterator[None]:
    """Makes train() of both Trainers, and `coverage.trace`, trace a step and raise StepTraced inside."""
    train_theirs, traced = transformers.trainer.Trainer.train, coverage.trace

    def train(trainer: Any, *args: Any, **kwargs: Any) -> None:
        raise StepTraced(trace_step(trainer, batches=batches), trainer)

    def train_transformers(trainer: Any, *args: Any, **kwargs: Any) -> None:
        raise StepTraced(_trace_transformers(trainer, train_theirs, batches), trainer)

    @functools.wraps(traced)
    def trace(*args: Any, **kwargs: Any) -> None:
        raise StepTraced(traced(*args, **kwargs))

    with (
        mock.patch.object(Trainer, "train", train),
        mock.patch.object(transformers.trainer.Trainer, "train", train_transformers),
        mock.patch.object(coverage, "trace", trace),
    ):
        yield


def _trace_transformers(trainer: Any, train: Callable[[Any], Any], batches: int) -> CoverageReport:
    """Traces whole steps of transformers' Trainer, without its callbacks, and one batch of evaluation."""

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step * args.gradient_accumulation_steps >= batches:
                raise _StepsDone

    trainer.callback_handler.callbacks = [DefaultFlowCallback(), Stop()]
    tracer = Tracer()
    with tracer, contextlib.suppress(_StepsDone):
        train(trainer)
    if trainer.eval_dataset is None:
        tracer.recorder.note("There is no eval_dataset, so no evaluation was traced.")
    else:
        trainer.model.eval()
        with tracer, tracer.phase("evaluation"):
            batch = next(iter(trainer.get_eval_dataloader()))
            trainer.prediction_step(trainer.model, batch, prediction_loss_only=False)
    return tracer.report()
