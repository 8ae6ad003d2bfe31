"""Stops a script at its first training step and traces that step."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .. import check
from ..check import CoverageReport, Tracer, trace_step
from ..check.step import evaluate_batch, few_batches
from ..trainer import Trainer

# `TrainingArguments(bf16=True)` asks it, and on a Mac it says yes from macOS 14 on.
_BF16 = "is_torch_bf16_gpu_available"
_ASK_FOR_BF16 = ("transformers.utils.import_utils", "transformers.utils", "transformers.training_args")


class StepTraced(BaseException):
    """Ends the script, past every `except Exception`; carries the report."""

    def __init__(self, report: CoverageReport, trainer: Any = None) -> None:
        super().__init__("The first training step has been traced.")
        self.report = report
        self.trainer = trainer  # None for a script that calls check.trace


class _StepsDone(BaseException):
    """Ends transformers' train()."""


@contextlib.contextmanager
def stop_at_first_step(batches: int) -> Iterator[None]:
    """Makes train() of both Trainers, and `check.trace`, trace a step and raise StepTraced inside."""

    def train_ours(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        raise StepTraced(trace_step(trainer, batches=batches), trainer)

    @functools.wraps(check.trace)
    def trace(*args: Any, **kwargs: Any) -> None:
        raise StepTraced(traced(*args, **kwargs))

    def patch_transformers(module: Any) -> None:
        train = module.Trainer.train
        undo.callback(setattr, module.Trainer, "train", train)
        module.Trainer.train = lambda trainer, *args, **kwargs: _trace_transformers(trainer, train, batches)

    def allow_bf16(module: Any) -> None:
        undo.callback(setattr, module, _BF16, getattr(module, _BF16))
        setattr(module, _BF16, lambda: True)

    traced = check.trace
    with contextlib.ExitStack() as undo:
        undo.callback(setattr, Trainer, "train", Trainer.train)
        undo.callback(setattr, check, "trace", traced)
        Trainer.train, check.trace = train_ours, trace  # type: ignore[method-assign,assignment]
        undo.enter_context(_when_imported("transformers.trainer", patch_transformers))
        for name in _ASK_FOR_BF16:
            undo.enter_context(_when_imported(name, allow_bf16))
        yield


def _trace_transformers(trainer: Any, train: Callable[[Any], Any], batches: int) -> None:
    """Traces whole steps and a log of transformers' Trainer, without its callbacks, and one batch of evaluation."""
    from transformers.trainer_callback import DefaultFlowCallback, TrainerCallback

    logging = contextlib.ExitStack()

    class StopAfterLog(TrainerCallback):
        """Logs after the batches asked for and no earlier, then ends train(); nothing is evaluated or saved."""

        done = 0  # batches
        is_last = False

        def on_substep_end(self, *_: Any, **kwargs: Any) -> None:
            self.done += 1

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.done += 1
            self.on_epoch_end(args, state, control)
            if self.done < batches and state.global_step < state.max_steps:
                return
            if self.done < batches:
                tracer.recorder.note(few_batches(self.done, batches))
            if args.logging_strategy == "no":
                raise _StepsDone
            self.is_last = control.should_log = True
            logging.enter_context(tracer.phase("logging"))

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.is_last:  # log() of a subclass told no callback
                raise _StepsDone
            control.should_log = control.should_evaluate = control.should_save = False

        on_step_begin = on_epoch_end

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise _StepsDone

    trainer.callback_handler.callbacks = [DefaultFlowCallback(), StopAfterLog()]
    tracer = Tracer()
    with tracer, contextlib.suppress(_StepsDone), logging:
        train(trainer)
    evaluate_batch(trainer, tracer)
    raise StepTraced(tracer.report(), trainer)


@contextlib.contextmanager
def _when_imported(name: str, patch: Callable[[Any], None]) -> Iterator[None]:
    """Calls `patch` with the module `name` once it is imported.

    Importing it here would take seconds, and read the variables of `datasets` before the script sets them.
    """
    if name in sys.modules:
        patch(sys.modules[name])
        yield
        return
    finder = _Watch(name, patch)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Watch(importlib.abc.MetaPathFinder):
    """Finds one module the way the other finders do, and patches it when it has been executed."""

    def __init__(self, name: str, patch: Callable[[Any], None]) -> None:
        self.name, self.patch = name, patch

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_patch(module: Any) -> None:
            execute(module)
            self.patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec
