"""Ending a run because a signal asked for it, in a place from which a resumed run goes on as if nothing had been."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from ..checkpoints import folders
from ..checkpoints.rng import rng_state, set_rng
from ..guards.signals import how_to_go_on

if TYPE_CHECKING:
    from .loop import TrainingLoop


class EvaluationLeftError(BaseException):
    """A signal came during an evaluation, which a resumed run will begin again. Past a user's `except Exception`."""


class Stopping:
    """What of a step is still due when a signal ends the run: a checkpoint is saved first, in case time is short.

    Attributes:
        due: of "evaluate" and "save", what comes after the step that the checkpoint was made at.
    """

    def __init__(self, loop: TrainingLoop, due: list[str]) -> None:
        self.loop = loop
        self.due = due
        self._before_evaluation: tuple[dict[str, Any], int] | None = None

    def begin_evaluation(self) -> None:
        """Notes what an evaluation changes, to take it back if a signal cuts it short."""
        if self.loop.args.save_on_signal and self.loop.stop.all_may_stop:
            history = self.loop.state.log_history
            self._before_evaluation = rng_state(), len(history)

    def end_evaluation(self) -> None:
        if self._before_evaluation is not None:
            self.loop.stop.agree()
        self._before_evaluation = None

    def leave_evaluation_if_asked(self, together: bool) -> None:
        """Raises EvaluationLeftError if a signal came and the evaluation can be begun again.

        Args:
            together: all processes come here after each batch, so that they can leave together.
        """
        if self._before_evaluation is None:
            return
        stop = self.loop.stop
        if together:
            stop.agree()
            stop.ask()  # is heard after the next batch
        if stop.signum is not None:
            raise EvaluationLeftError

    def evaluate_at_start(self) -> None:
        """The evaluation before the first step; a signal ends it and the run, with nothing to save."""
        trainer = self.loop.trainer
        self.begin_evaluation()
        try:
            trainer._evaluate(self.loop.trial, trainer.ignore_keys_for_eval, skip_scheduler=True)
        except EvaluationLeftError:
            self.loop.stop.end("Stopped in the evaluation before the first step, with nothing new to save.")
        self.end_evaluation()

    def do_what_is_due(self) -> None:
        """In a resumed run: what the signal kept the run before it from."""
        if not self.due:
            return
        loop, control = self.loop, self.loop.trainer.control
        control.should_evaluate, control.should_save = "evaluate" in self.due, "save" in self.due
        self.due = []
        if loop.rng is None:  # a checkpoint without them
            loop.log_evaluate_save()
            return
        set_rng(loop.rng)
        loop.log_evaluate_save()
        loop.rng = {**loop.rng, **rng_state()}  # an evaluation draws, too
        loop.rng_is_as_saved = False

    def save_and_end(self) -> NoReturn:
        """Saves a checkpoint and ends the run. What the step was to be followed by is left for a resumed run.

        Raises:
            KeyboardInterrupt, SystemExit: see `StopRequest.end`.
        """
        loop, trainer = self.loop, self.loop.trainer
        control, was_evaluating = trainer.control, self._before_evaluation is not None
        if self._before_evaluation is not None:
            rng, entries = self._before_evaluation
            set_rng(rng)
            del loop.state.log_history[entries:]
        if control.should_log and loop.state.global_step > loop.meter.last_read_step:
            with contextlib.suppress(BrokenPipeError):  # Ctrl-C has ended the `tee` that a callback writes to
                loop.log(loop.grad_norm, loop.rate)
        if control.should_evaluate or was_evaluating:
            self.due = ["evaluate", *(["save"] if control.should_save else [])]
        trainer._save_checkpoint(loop.model, loop.trial)
        trainer.tell_saved(loop.trial)
        trainer.finish_save()
        loop.stop.end(self._message())

    def save_without_batch(self, done: int) -> NoReturn:
        """The same where the next batch cannot be loaded any more, `done` batches into an epoch."""
        if not done:  # back to the end of the epoch before it
            self.loop.epoch_has_ended = True
            self.loop.draws.unbegin()
        self.save_and_end()

    def end_if_asked(self) -> None:
        """Ends a run that had come to its end when a signal came, with a checkpoint of its last step.

        With `load_best_model_at_end` the weights are the best ones by now, and their checkpoint is there.
        """
        loop, trainer = self.loop, self.loop.trainer
        loop.stop.agree()
        if loop.stop.signum is None:
            return
        step = loop.state.global_step
        folder = folders.checkpoint_folder(trainer._get_output_dir(loop.trial), step)
        is_saved = trainer.processes.first_does(
            lambda: os.path.isdir(folder) and folder not in trainer.earlier_checkpoints
        )
        has_best = loop.args.load_best_model_at_end and loop.state.best_model_checkpoint is not None
        if not is_saved and not has_best:
            self.save_and_end()
        loop.stop.end(f"Stopped when training had ended, after step {step}, and before what was to follow it.")

    def _launcher(self, machines: int) -> list[str]:
        """What started this process: Python, or torchrun on one machine or several."""
        python, size = sys.executable or "python", self.loop.trainer.processes.size
        if size == 1:
            return [python]
        several = ["--nnodes", str(machines), "--node_rank", "..."] if machines > 1 else []
        return [python, "-m", "torch.distributed.run", *several, "--nproc_per_node", str(size // machines)]

    def _message(self) -> str:
        trainer, step = self.loop.trainer, self.loop.state.global_step
        machines = trainer.processes.gather(trainer.args.local_process_index).count(0)
        if trainer.unsaved is not None:
            return f"Stopped after step {step}, but {trainer.unsaved}"
        folder = folders.checkpoint_folder(trainer._get_output_dir(self.loop.trial), step)
        takes_flags = "transformers.hf_argparser" in sys.modules
        way_on = how_to_go_on(folder, sys.argv if takes_flags else [], self._launcher(machines))
        return f"Stopped after step {step} of {self.loop.plan.max_steps} and saved {folder}. To go on: {way_on}"
