"""Ends a run after a signal at a point from which a resumed run gives the same results."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ..callbacks.events import Events
from ..distributed import Processes
from ..guards.signals import SignalHandler, how_to_go_on
from ..random_state import rng_state, set_rng
from ..training_args import TrainingArguments
from .hooks import Checkpointing, Stateful, StatePair


class EvaluationLeftError(BaseException):
    """A signal came during an evaluation, which a resumed run repeats. Not caught by `except Exception`."""


@functools.cache
def script_takes_flags() -> bool:
    """Returns True if the script has loaded `HfArgumentParser`; asked before the first report loads it."""
    return "transformers.hf_argparser" in sys.modules


class PreemptionHandler:
    """Saves a checkpoint after a signal, before evaluations and saves of the step.

    Args:
        signals: has noted the signal.
        log: logs the losses since the last log, if there are any.

    Attributes:
        due: of "evaluate" and "save", what a resumed run does first: it comes after the step of its checkpoint.
    """

    def __init__(
        self,
        signals: SignalHandler,
        events: Events,
        args: TrainingArguments,
        processes: Processes,
        checkpointing: Checkpointing,
        log: Callable[[], None],
    ) -> None:
        self.signals, self.events, self.args, self.processes = signals, events, args, processes
        self.checkpointing, self.log = checkpointing, log
        self.due: list[str] = []
        self._changed_by_evaluation: dict[str, Stateful] = {
            "rng": StatePair(rng_state, set_rng),
            "log_history": StatePair(lambda: list(events.state.log_history), self._set_log_history),
        }
        self._before_evaluation: dict[str, Any] | None = None
        self._takes_flags = script_takes_flags()

    def _set_log_history(self, entries: list[dict[str, Any]]) -> None:
        self.events.state.log_history[:] = entries  # in place: a callback may hold the list

    @property
    def should_end(self) -> bool:
        """Returns True if a signal came and every process may stop here."""
        return self.signals.signum is not None and self.signals.all_may_stop

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Lets a signal interrupt an evaluation inside; `save_and_end` restores the state from before it."""
        if self.args.save_on_signal and self.signals.all_may_stop:
            self._before_evaluation = {name: part.state_dict() for name, part in self._changed_by_evaluation.items()}
        yield
        if self._before_evaluation is not None:
            self.signals.agree()
        self._before_evaluation = None

    def leave_evaluation_if_asked(self, together: bool) -> None:
        """Raises EvaluationLeftError if a signal came and the evaluation can be repeated.

        Args:
            together: all processes come here after each batch, so that they can leave together.
        """
        if self._before_evaluation is None:
            return
        if together:
            self.signals.agree()
            self.signals.ask()  # is heard after the next batch
        if self.signals.signum is not None:
            raise EvaluationLeftError

    def evaluate_at_start(self, evaluate: Callable[[], Any]) -> None:
        """Evaluates before the first step. A signal ends the run, with nothing to save."""
        try:
            with self.evaluating():
                evaluate()
        except EvaluationLeftError:
            self.signals.end("Stopped in the evaluation before the first step, with nothing new to save.")

    def ask_for_what_is_due(self) -> bool:
        """Requests what a signal prevented in the previous run. Returns False if there is nothing."""
        if not self.due:
            return False
        control = self.events.control
        control.should_evaluate, control.should_save = "evaluate" in self.due, "save" in self.due
        self.due = []
        return True

    def save_and_end(self, max_steps: int) -> NoReturn:
        """Saves a checkpoint and ends the run. A resumed run does the evaluations and saves that are still due.

        Raises:
            KeyboardInterrupt, SystemExit: see `SignalHandler.end`.
        """
        control, was_evaluating = self.events.control, self._before_evaluation is not None
        if self._before_evaluation is not None:
            for name, part in self._changed_by_evaluation.items():
                part.load_state_dict(self._before_evaluation[name])
        if control.should_log:
            self.log()
        if control.should_evaluate or was_evaluating:
            self.due = ["evaluate", *(["save"] if control.should_save else [])]
        self.checkpointing.save()
        self.checkpointing.wait()
        self.signals.end(self._message(max_steps))

    def end_if_asked(self, max_steps: int) -> None:
        """Ends a run that got a signal after its last step, with a checkpoint of that step.

        With `load_best_model_at_end` the weights are the best ones by now, and their checkpoint is there.
        """
        self.signals.agree()
        if self.signals.signum is None:
            return
        state, is_saved = self.events.state, self.checkpointing.is_saved()
        has_best = self.args.load_best_model_at_end and state.best_model_checkpoint is not None
        if not is_saved and not has_best:
            self.save_and_end(max_steps)
        step = state.global_step
        self.signals.end(f"Stopped after the last step, {step}, and before the work that follows training.")

    def _launcher(self, machines: int) -> list[str]:
        """Returns what started this process: Python, or torchrun on one machine or several."""
        python, size = sys.executable or "python", self.processes.size
        if size == 1:
            return [python]
        several = ["--nnodes", str(machines), "--node_rank", "..."] if machines > 1 else []
        return [python, "-m", "torch.distributed.run", *several, "--nproc_per_node", str(size // machines)]

    def _message(self, max_steps: int) -> str:
        step = self.events.state.global_step
        machines = self.processes.gather(self.args.local_process_index).count(0)
        if (unsaved := self.checkpointing.unsaved()) is not None:
            return f"Stopped after step {step}, but {unsaved}"
        folder = self.checkpointing.folder()
        way_on = how_to_go_on(folder, sys.argv if self._takes_flags else [], self._launcher(machines))
        return f"Stopped after step {step} of {max_steps} and saved {folder}. To resume: {way_on}"
