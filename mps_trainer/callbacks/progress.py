"""Shows a bar for training and one for evaluation, and a line for each log; without a terminal, lines alone."""

from __future__ import annotations

import time
from typing import Any

from transformers.trainer_callback import ProgressCallback as TransformersProgressCallback

from ..data.loader import length_of, num_examples
from ..utils.amounts import format_bytes
from ..utils.terminal import on_terminal
from .overview import examples_in_step, first_lines
from .progress_bars import Bar, memory_in_use, samples_per_second
from .progress_lines import Tenths

_SHOWN = {"loss": "loss {:.4f}", "learning_rate": "lr {:.2e}", "grad_norm": "grad norm {:.3g}"}
_UNITS = ("flos", "runtime")


class ProgressCallback(TransformersProgressCallback):
    """transformers' two bars with time left, samples/s and memory in them, and its dictionaries as lines.

    Where stderr is no terminal there are no bars, but a line at each tenth of training and of an evaluation in which
    no log said how far things are. Only the first process shows anything.
    """

    def __init__(self, max_str_len: int = 100) -> None:
        super().__init__(max_str_len)
        self.training_bar: Bar | None = None
        self.prediction_bar: Bar | None = None
        self._is_training = False
        self._steps: Tenths | None = None  # instead of training_bar
        self._batches: Tenths | None = None  # instead of prediction_bar
        self._evaluated_loader: Any = None
        self._batch = self._evaluated = 0
        self._at_last_log = (0, 0.0)
        self._paused_at: float | None = None  # when an evaluation or a save began

    # Training

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batch = examples_in_step(args, state)
        self.current_step = state.global_step
        if not state.is_world_process_zero:
            return
        self.close()
        self._is_training, self._paused_at = True, None
        print("\n".join(first_lines(args, state, kwargs["model"], kwargs.get("train_dataloader"))), flush=True)
        if on_terminal():
            self.training_bar = Bar(
                self._batch, args.device, total=state.max_steps, initial=state.global_step, desc="training"
            )
        else:
            self._steps = Tenths(state.max_steps, self._batch, state.global_step)
        self._at_last_log = (state.global_step, time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if self.training_bar is not None:
            self.training_bar.update(step - self.current_step)
            self.current_step = step
        elif self._steps is None:
            return
        elif step >= self._steps.next and not control.should_log and self._steps.due(step):
            self._write(self._parts(args, state))
        self._note_pause(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._note_pause(control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave_out_pause()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    # Evaluation

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        if eval_dataloader is not self._evaluated_loader:  # memory may have run out in the one before
            self._end_evaluation()
            self._begin_evaluation(args, eval_dataloader)
        elif self.prediction_bar is not None:
            self.prediction_bar.update(1)
        elif self._batches is not None:
            self._evaluated += 1
            if self._batches.due(self._evaluated):
                self._write(self._parts_of_evaluation(args))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_evaluation()
        self._leave_out_pause()

    def on_predict(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_evaluation()

    def _begin_evaluation(self, args: Any, loader: Any) -> None:
        """Starts the bar after the first batch, which counts as done without a time."""
        total = length_of(loader)
        examples = num_examples(loader, args.eval_batch_size) / total if total else args.eval_batch_size
        self._evaluated_loader = loader
        if on_terminal():
            leave = not self._is_training
            self.prediction_bar = Bar(examples, args.device, total=total, initial=1, desc="evaluation", leave=leave)
        elif total:
            self._batches, self._evaluated = Tenths(total, examples, begun_at=1), 1

    def _end_evaluation(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
        self.prediction_bar = None
        self._batches = self._evaluated_loader = None

    # Logs

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not self._is_training or not logs:
            return
        if "loss" in logs:
            self._write(self._parts(args, state, logs))
            if self._steps is not None:
                self._steps.tell()
        else:
            numbers = (f"{name} {value:.4g}" for name, value in logs.items() if _is_shown(name, value))
            self._write([f"step {state.global_step}", *numbers])

    def close(self) -> None:
        """Closes the bars, also for a run that ends in an error, so that its message begins a new line."""
        if self.training_bar is not None:
            self.training_bar.close()
        self.training_bar = self._steps = None
        self._end_evaluation()
        self._is_training = False

    def _parts(self, args: Any, state: Any, logs: dict[str, Any] | None = None) -> list[str]:
        """Returns the parts of a line on training, with the rate since the last log, or else of the whole run."""
        step, parts = state.global_step, [f"step {state.global_step}/{state.max_steps}", f"epoch {state.epoch:.2f}"]
        speed = None
        if logs is not None:
            parts += [
                text.format(logs[name]) for name, text in _SHOWN.items() if isinstance(logs.get(name), (int, float))
            ]
            speed = self._speed_since_last_log(step)
        if self._steps is not None:
            parts.append(self._steps.clocks(step))
            speed = speed or self._steps.speed(step)
        return [*parts, *([speed] if speed else []), *_memory(args)]

    def _speed_since_last_log(self, step: int) -> str | None:
        now = time.perf_counter()
        last_step, last_time = self._at_last_log
        self._at_last_log = (step, now)
        if now <= last_time or step <= last_step:
            return None
        return samples_per_second((step - last_step) * self._batch / (now - last_time))

    def _parts_of_evaluation(self, args: Any) -> list[str]:
        assert self._batches is not None
        done = self._evaluated
        speed = self._batches.speed(done)
        place = [f"evaluation {done}/{self._batches.total}", self._batches.clocks(done)]
        return [*place, *([speed] if speed else []), *_memory(args)]

    def _write(self, parts: list[str]) -> None:
        line = " | ".join(parts)
        if self.training_bar is not None:
            self.training_bar.write(line)
        else:
            print(line, flush=True)

    # What is not training

    def _note_pause(self, control: Any) -> None:
        self._paused_at = None
        if control.should_evaluate or control.should_save:
            self._paused_at = time.perf_counter()
            if self.training_bar is not None:
                self.training_bar.refresh()  # it stands still until that is done

    def _leave_out_pause(self) -> None:
        if self._paused_at is None or not self._is_training:
            return
        now = time.perf_counter()
        seconds, self._paused_at = now - self._paused_at, now
        step, last = self._at_last_log
        self._at_last_log = (step, last + seconds)
        for shown in (self.training_bar, self._steps):
            if shown is not None:
                shown.leave_out(seconds)


def _memory(args: Any) -> list[str]:
    memory = memory_in_use(args.device)
    return [] if memory is None else [format_bytes(memory)]


def _is_shown(name: str, value: Any) -> bool:
    return isinstance(value, (int, float)) and not name.endswith(_UNITS)
