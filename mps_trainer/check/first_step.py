"""Stops a script at its first training step and traces that step."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter
from transformers import training_args, utils

from .. import check
from ..errors import ScriptStopped
from ..trainer import Trainer
from ..utils.attributes import attributes_replaced
from .step import evaluate_batch, few_batches, trace_step
from .tracer import Tracer


class _StepsDone(BaseException):
    """Ends transformers' train()."""


@contextlib.contextmanager
def stop_at_first_step(batches: int) -> Iterator[None]:
    """Makes train() of both Trainers, and `check.trace`, trace a step and raise ScriptStopped inside.

    The exception carries the report, and the Trainer or None.
    """
    from unittest import mock  # here, because it imports asyncio

    run_trace = check.trace

    def train_ours(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        raise ScriptStopped(trace_step(trainer, batches=batches), trainer)

    @functools.wraps(run_trace)
    def trace(*args: Any, **kwargs: Any) -> None:
        raise ScriptStopped(run_trace(*args, **kwargs), None)

    with contextlib.ExitStack() as undo:

        def patch(owner: Any, name: str, value: Any) -> None:
            undo.enter_context(mock.patch.object(owner, name, value))

        def patch_transformers(module: Any) -> None:
            train = module.Trainer.train
            patch(module.Trainer, "train", lambda trainer, *args, **kw: _trace_transformers(trainer, train, batches))

        patch(Trainer, "train", train_ours)
        patch(check, "trace", trace)
        for module in (utils.import_utils, utils, training_args):
            # `TrainingArguments(bf16=True)` asks it, and on a Mac it says yes from macOS 14 on
            patch(module, "is_torch_bf16_gpu_available", lambda: True)
        undo.enter_context(_when_imported("transformers.trainer", patch_transformers))
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
    load = _BaseDataLoaderIter.__next__

    def load_on_host(batches: Any) -> Any:
        with tracer.paused():  # transforms of images are modules, and name the device of their tensors
            return load(batches)

    untraced = attributes_replaced([(_BaseDataLoaderIter, "__next__", load_on_host)])
    with untraced, tracer, contextlib.suppress(_StepsDone), logging:
        train(trainer)
    evaluate_batch(trainer, tracer)
    raise ScriptStopped(tracer.report(), trainer)


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


@dataclass(eq=False)
class _Watch(importlib.abc.MetaPathFinder):
    """Finds one module the way the other finders do, and patches it when it has been executed."""

    name: str
    patch: Callable[[Any], None]

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: Any) -> None:
                execute(module)
                self.patch(module)

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec
