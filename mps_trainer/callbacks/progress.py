"""Shows a bar for training and one for evaluation, and a line for each log; without a terminal, lines alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm
from transformers.trainer_callback import ProgressCallback as TransformersProgressCallback

from ..data.epoch_loader import length_of, num_examples
from ..utils.terminal import on_terminal
from .overview import examples_in_step, first_lines
from .progress_display import Bar, Display, Lines, memory_in_use, samples_per_second

_SHOWN = {"loss": "loss {:.4f}", "learning_rate": "lr {:.2e}", "grad_norm": "grad norm {:.3g}"}
_UNITS = ("flos", "runtime")


class ProgressCallback(Display, TransformersProgressCallback):
    """transformers' two bars with time left, samples/s and memory in them, and its dictionaries as lines.

    Where stderr is no terminal there are no bars, but a line at each tenth of training and of an evaluation in which
    no log said how far things are. Only the first process shows anything.
    """

    def __init__(self, max_str_len: int = 100) -> None:
        super().__init__(max_str_len)
        self.training_bar: Bar | None = None
        self.prediction_bar: Bar | None = None
        self._evaluated_loader: Any = None
        self._batch = 0
        self._last_log = (0, 0.0)  # step and time
        self._paused_at: float | None = None  # when an evaluation or a save began

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batch = examples_in_step(args, state)
        self.current_step = state.global_step
        if not state.is_world_process_zero:
            return
        self.close()
        self._paused_at = None
        print("\n".join(first_lines(args, state, kwargs["model"], kwargs.get("train_dataloader"))), flush=True)
        total, done = state.max_steps, state.global_step
        if on_terminal():
            self.training_bar = Bar(self._batch, args.device, total, initial=done, desc="training")
        else:
            self.training_bar = Lines(self._batch, args.device, total, done)
        self._last_log = (done, time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.training_bar is None:
            return
        is_due = self.training_bar.update(state.global_step - self.current_step)
        self.current_step = state.global_step
        if is_due and isinstance(self.training_bar, Lines) and not control.should_log:
            self._write_training_line(self.training_bar, state)
        self._note_pause(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._note_pause(control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave_out_pause()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        if eval_dataloader is not self._evaluated_loader:  # memory may have run out in the one before
            self.end_evaluation()
            self._begin_evaluation(args, eval_dataloader)
        elif (bar := self.prediction_bar) is not None and bar.update(1) and isinstance(bar, Lines):
            facts = bar.format_dict
            _write([f"evaluation {bar.n}/{bar.total}", facts["clocks"], facts["speed"], facts["memory"]])

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end_evaluation()
        self._leave_out_pause()

    def on_predict(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end_evaluation()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.training_bar is None or not logs:
            return
        if not isinstance(self.training_bar, Bar):  # a subclass has a bar of its own, as it may with transformers
            super().on_log(args, state, control, logs, **kwargs)
            return
        numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        if "loss" in logs:
            shown = [text.format(numbers[name]) for name, text in _SHOWN.items() if name in numbers]
            speed = self._speed_since_last_log(state.global_step)
            self._write_training_line(self.training_bar, state, shown, speed)
            if isinstance(self.training_bar, Lines):
                self.training_bar.note_line()
        else:
            metrics = (f"{name} {value:.4g}" for name, value in numbers.items() if not name.endswith(_UNITS))
            _write([f"step {state.global_step}", *metrics])

    def close(self) -> None:
        """Closes the bars, also for a run that ends in an error, so that its message begins a new line."""
        if self.training_bar is not None:
            self.training_bar.close()
        self.training_bar = None
        self.end_evaluation()

    def _begin_evaluation(self, args: Any, loader: Any) -> None:
        """Starts the bar after the first batch, which counts as done without a time."""
        total = length_of(loader)
        examples = num_examples(loader, args.eval_batch_size) / total if total else args.eval_batch_size
        self._evaluated_loader = loader
        if on_terminal():
            leave = self.training_bar is None
            self.prediction_bar = Bar(examples, args.device, total, initial=1, desc="evaluation", leave=leave)
        elif total:
            self.prediction_bar = Lines(examples, args.device, total, initial=1)

    def end_evaluation(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
        self.prediction_bar = self._evaluated_loader = None

    def _write_training_line(self, bar: Bar, state: Any, logged: Sequence[str] = (), speed: str | None = None) -> None:
        parts = [f"step {state.global_step}/{state.max_steps}", f"epoch {state.epoch:.2f}", *logged]
        if isinstance(bar, Lines):
            parts.append(bar.format_dict["clocks"])
            speed = speed or bar.format_dict["speed"]
        _write([*parts, speed, memory_in_use(bar.device)])

    def _speed_since_last_log(self, step: int) -> str | None:
        now = time.perf_counter()
        last_step, last_time = self._last_log
        self._last_log = (step, now)
        if now <= last_time or step <= last_step:
            return None
        return samples_per_second((step - last_step) * self._batch / (now - last_time))

    def _note_pause(self, control: Any) -> None:
        self._paused_at = None
        if isinstance(self.training_bar, Bar) and (control.should_evaluate or control.should_save):
            self._paused_at = time.perf_counter()
            self.training_bar.refresh()  # it stands still until that is done

    def _leave_out_pause(self) -> None:
        if self._paused_at is None or self.training_bar is None:
            return
        now = time.perf_counter()
        seconds, self._paused_at = now - self._paused_at, now
        step, last = self._last_log
        self._last_log = (step, last + seconds)
        self.training_bar.leave_out(seconds)


def _write(parts: list[str | None]) -> None:
    """Writes a line to stdout, above the bars."""
    with tqdm.external_write_mode():
        print(" | ".join(part for part in parts if part), flush=True)
