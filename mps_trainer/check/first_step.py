"""Stops a script at its first training step and traces that step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
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
    run_trace = check.trace

    def train_ours(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        raise ScriptStopped(trace_step(trainer, batches=batches), trainer)

    @functools.wraps(run_trace)
    def trace(*args: Any, **kwargs: Any) -> None:
        raise ScriptStopped(run_trace(*args, **kwargs), None)

    arguments_class: Any = training_args.TrainingArguments
    make_arguments = arguments_class.__post_init__
    with contextlib.ExitStack() as undo:

        def patch_trainer(arguments: Any) -> None:
            # Each of transformers' Trainers has arguments. Importing it before the script does would take seconds, and
            # read the variables of `datasets` before the script sets them.
            from transformers import trainer

            train = trainer.Trainer.train
            change = (trainer.Trainer, "train", lambda made, *args, **kw: _trace_transformers(made, train, batches))
            undo.enter_context(attributes_replaced([change]))
            arguments_class.__post_init__ = make_arguments
            make_arguments(arguments)

        changes = [(Trainer, "train", train_ours), (check, "trace", trace)]
        changes.append((arguments_class, "__post_init__", patch_trainer))
        for module in (utils.import_utils, utils, training_args):
            # `TrainingArguments(bf16=True)` asks it, and on a Mac it says yes from macOS 14 on
            changes.append((module, "is_torch_bf16_gpu_available", lambda: True))
        undo.enter_context(attributes_replaced(changes))
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
