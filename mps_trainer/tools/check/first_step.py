"""Traces the first step of transformers' Trainer in a script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from ...utils.attributes import attributes_replaced
from ..stopped import ScriptStopped
from .residency import Residency
from .step import evaluate_batch, few_batches
from .tracer import Tracer


class _StepsDone(BaseException):
    """Ends transformers' train()."""


def trace_transformers(trainer: Any, train: Callable[[Any], Any], batches: int, placed: Residency) -> None:
    """Traces whole steps and a log of transformers' Trainer, without its callbacks, and one batch of evaluation.

    Args:
        placed: the tensors that are known to be on the device.

    Raises:
        ScriptStopped: always. It carries the report and the Trainer.
    """
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
    tracer = Tracer(unknown_on_device=False)
    tracer.residency.update(placed)
    load = _BaseDataLoaderIter.__next__

    def load_on_host(batches: Any) -> Any:
        with tracer.paused():  # transforms of images are modules, and name the device of their tensors
            return load(batches)

    untraced = attributes_replaced([(_BaseDataLoaderIter, "__next__", load_on_host)])
    with untraced, tracer, contextlib.suppress(_StepsDone), logging:
        train(trainer)
    evaluate_batch(trainer, tracer)
    raise ScriptStopped(tracer.report(), trainer)
