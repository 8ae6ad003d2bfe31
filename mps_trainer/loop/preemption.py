"""Ends a run after a signal at a point from which a resumed run gives the same results."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ..checkpoints.saver import CheckpointSaver
from ..devices.launchers import MLX_RANK, SLURM_TASKS
from ..guards.signals import SignalHandler, how_to_go_on
from ..launching.settings import COMMAND
from .position import Position
from .rollback import Rollback
from .surface import TrainerSurface


def _command(path: str) -> list[str]:
    """Returns the `mps-trainer` argv that started the script at `path`, ending in this script; [] if none did.

    The last word is checked, because a process that such a script starts inherits the variable.
    """
    words = shlex.split(os.environ.get(COMMAND, ""))
    module = os.path.dirname(path) if os.path.basename(path) == "__main__.py" else os.path.splitext(path)[0]
    script, name = os.path.basename(path), os.path.basename(module)
    is_it = bool(words) and (os.path.basename(words[-1]) == script or words[-1].rpartition(".")[2] == name)
    return words if is_it else []


class EvaluationLeftError(BaseException):
    """A signal came during an evaluation, which a resumed run repeats. Not caught by `except Exception`."""


@functools.cache
def script_takes_flags() -> bool:
    """Returns True if the script has loaded `HfArgumentParser`; asked before the first report loads it."""
    return "transformers.hf_argparser" in sys.modules


class PreemptionHandler:
    """Saves a checkpoint after a signal, before evaluations and saves of the step, and ends the run.

    `SignalHandler` notes a signal when it comes. The run acts on it at these moments:

    - after each step and each epoch, before and after the log, evaluation and save that callbacks requested:
      `save_and_end`, from `TrainingRun.evaluate_and_save_as_requested`;
    - after each batch of an evaluation: `leave_evaluation_if_asked`, from `run_evaluation`. `save_and_end` follows, as
      after a step;
    - in the evaluation before the first step: `evaluate_at_start`, which has nothing to save;
    - if the next batch cannot be loaded, because the signal ended a worker: `save_and_end`, from
      `TrainingRun.save_without_batch`;
    - after the work that follows the last step: `end_if_signalled`, from `TrainingRun.finish`.

    Before each step the processes start to ask each other for a signal (`SignalHandler.ask`). The first moment waits
    for the answer (`agree`).

    Args:
        signals: notes signals.
        position: holds what a signal postponed.
        rollback: restores the state from before an evaluation that the signal interrupts.
    """

    def __init__(
        self, trainer: TrainerSurface, signals: SignalHandler, position: Position, rollback: Rollback
    ) -> None:
        self.trainer, self.signals, self.position, self.rollback = trainer, signals, position, rollback
        self._before_evaluation: dict[str, Any] | None = None
        self._takes_flags = script_takes_flags()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Lets a signal interrupt an evaluation inside; `save_and_end` restores the state from before it."""
        if self.trainer.args.save_on_signal:
            self._before_evaluation = self.rollback.snapshot(with_buffers=False)
        try:
            yield
        except Exception:  # does not catch EvaluationLeftError
            self._before_evaluation = None
            raise
        if self._before_evaluation is not None:
            self.signals.agree()
        self._before_evaluation = None

    def leave_evaluation_if_asked(self, together: bool) -> None:
        """Raises EvaluationLeftError if a signal came and the evaluation can be repeated.

        Args:
            together: True if all processes come here after each batch, so that they can leave together.
        """
        if self._before_evaluation is None:
            return
        if together:
            self.signals.agree()
            self.signals.ask()  # the answer is read after the next batch
        if self.signals.signum is not None:
            raise EvaluationLeftError

    def evaluate_at_start(self, trial: Any) -> None:
        """Evaluates before the first step. A signal ends the run, with nothing to save."""
        with contextlib.suppress(EvaluationLeftError), self.evaluating():
            self.trainer._evaluate(trial, self.trainer.ignore_keys_for_eval, skip_scheduler=True)
            return
        self.signals.end("Stopped in the evaluation before the first step, with nothing new to save.")

    def request_postponed(self) -> bool:
        """Requests what a signal prevented in the previous run. Returns False if there is nothing."""
        control, postponed = self.trainer.control, self.position.postponed
        if not postponed:
            return False
        control.should_evaluate, control.should_save = "evaluate" in postponed, "save" in postponed
        control.should_training_stop |= "stop" in postponed
        self.position.postponed = []
        return True

    def save_and_end(self, log: Callable[[Any, float | None], None]) -> NoReturn:
        """Saves a checkpoint and ends the run. A resumed run does the evaluations and saves that were prevented.

        Args:
            log: logs the losses of the steps, with the norm and the learning rate of the last.

        Raises:
            KeyboardInterrupt, SystemExit: see `SignalHandler.end`.
        """
        control, position = self.trainer.control, self.position
        if self._before_evaluation is not None:
            self.rollback.restore(self._before_evaluation)
        if control.should_log and self.trainer.state.global_step > position.meter.last_read_step:
            with contextlib.suppress(BrokenPipeError):  # Ctrl-C has ended the `tee` that a callback writes to
                log(position.grad_norm, position.learning_rate)
        if control.should_evaluate or self._before_evaluation is not None:
            position.postponed = ["evaluate", *(["save"] if control.should_save else [])]
        if control.should_training_stop and self.trainer.state.global_step < self.trainer.state.max_steps:
            position.postponed.append("stop")  # a callback had ended the run before
        saver = CheckpointSaver(self.trainer)
        saver.save_through_trainer()
        saver.wait()
        self.signals.end(self._message())

    def end_if_signalled(self, log: Callable[[Any, float | None], None]) -> None:
        """Ends a run that got a signal after its last step, with a checkpoint of that step.

        With `load_best_model_at_end` the weights are the best ones by now, and their checkpoint is there.
        """
        self.signals.agree()
        if self.signals.signum is None:
            return
        state, processes = self.trainer.state, self.trainer._mt_processes
        is_saved = self.trainer._mt_checkpoints.is_saved(state.global_step, processes)
        has_best = self.trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None
        if not is_saved and not has_best:
            self.save_and_end(log)
        step = state.global_step
        self.signals.end(f"Stopped after the last step, {step}, and before the work that follows training.")

    def _launcher(self, machines: int) -> list[str]:
        """Returns what started the script: `mps-trainer` with its flags, Python, mlx.launch, srun or torchrun."""
        python, size = sys.executable or "python", self.trainer._mt_processes.size
        words = _command(sys.argv[0])[:-1]
        one = ["-m", "mps_trainer", *words] if words else []
        is_torchrun = "RANK" in os.environ
        if size == 1 or (words[:1] == ["launch"] and is_torchrun):  # launch has started the others, as torchrun does
            return [python, *one]
        if MLX_RANK in os.environ and not is_torchrun:
            return ["mlx.launch", *(["--hostfile", "..."] if machines > 1 else ["-n", str(size)]), "--", python, *one]
        if SLURM_TASKS in os.environ and not is_torchrun:
            return ["srun", "--nodes", str(machines), "--ntasks", str(size), python, *one]
        several = ["--nnodes", str(machines), "--node_rank", "..."] if machines > 1 else []
        return [python, "-m", "torch.distributed.run", *several, "--nproc_per_node", str(size // machines), *one]

    def _message(self) -> str:
        state = self.trainer.state
        step, max_steps = state.global_step, state.max_steps
        machines = self.trainer._mt_processes.gather(self.trainer.args.local_process_index).count(0)
        if (unsaved := self.trainer._mt_checkpoints.unsaved) is not None:
            return f"Stopped after step {step}, but {unsaved}"
        folder = self.trainer._mt_checkpoints.folder(step)
        argv = list(sys.argv) if self._takes_flags else []
        if argv and (words := _command(argv[0])):
            argv[0] = words[-1]  # a module's name, where sys.argv has its file
        way_on = how_to_go_on(folder, argv, self._launcher(machines))
        return f"Stopped after step {step} of {max_steps} and saved {folder}. To resume: {way_on}"
