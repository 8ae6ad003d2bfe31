"""Times steps of one Trainer: this package's or transformers' own, on the same model and rows."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from ... import trainer, training_args
from ...checkpoints.rng import rng_state, set_rng
from ...devices import Decision
from ...guards.memory import limit_memory, release_buffers
from ..fit.step import as_on_mps, largest_batch, measure_step
from .results import OURS
from .workloads import Task

WARM_UP = 1  # steps that make the optimizer's state and compile kernels
LEAST, MOST = 2, 200  # timed steps, unless one alone takes the whole time
TRANSFORMERS = "transformers"
_MOST_STEPS = WARM_UP + 1 + MOST


def synchronize(device: torch.device) -> None:
    """Waits until the device has computed everything."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def how_many(probe: float, seconds: float) -> int:
    """Returns the number of steps to time for about `seconds`, when one has taken `probe`; 0 if it took them all."""
    if probe >= seconds:
        return 0
    return min(max(math.ceil(seconds / max(probe, 1e-6)), LEAST), MOST)


class StepTimer(TrainerCallback):
    """Times the steps after the warm-up, and ends the run.

    The first of them is timed alone, and decides on the number of the others. The device is waited for before and
    after, not between.

    Attributes:
        seconds: the mean time of a step; None until the run has ended.
    """

    def __init__(self, device: torch.device, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: float | None = None
        self._device, self._wanted, self._clock = device, seconds, clock
        self._begun, self._left = 0.0, 0
        self._steps = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step - WARM_UP
        if step == 0:
            self._begun = self._now()
        elif step == 1:
            probe = self._now() - self._begun
            self._steps = how_many(probe, self._wanted)
            self.seconds, self._begun = probe, self._begun + probe
        if step >= 1 and step == 1 + self._steps:
            if self._steps:
                self.seconds = (self._now() - self._begun) / self._steps
            control.should_training_stop = True

    def _now(self) -> float:
        synchronize(self._device)
        return self._clock()


class Measurement:
    """Measures the steps of either Trainer on one task.

    Args:
        decision: the device that training uses here.
        folder: for files of the runs.
        seconds: the length of the timed part of a run.
    """

    def __init__(self, task: Task, decision: Decision, folder: Path, seconds: float) -> None:
        self.task, self.decision, self.folder, self.seconds = task, decision, folder, seconds

    def trainer(self, name: str, callbacks: list[TrainerCallback] | None = None) -> Any:
        """Returns this package's Trainer, or that of transformers, with the same settings."""
        settings: dict[str, Any] = {
            "output_dir": str(self.folder / name),
            "per_device_train_batch_size": self.task.batch_size,
            "max_steps": _MOST_STEPS,
            "learning_rate": 1e-6,
            "lr_scheduler_type": "constant",
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": self.decision.type == "cpu",
        }
        if name == OURS:
            settings["save_on_signal"] = False  # Ctrl-C ends the command at once, as it does with transformers
        kinds: Any = (trainer, training_args) if name == OURS else (transformers, transformers)
        args = kinds[1].TrainingArguments(**settings)
        if args.n_gpu > 1:  # transformers would train a larger batch on all GPUs of the machine
            args._n_gpu = 1
        made = kinds[0].Trainer(
            model=self.task.model,
            args=args,
            train_dataset=self.task.rows,
            callbacks=callbacks,
        )
        made.remove_callback(PrinterCallback)
        return made

    def estimated_bytes(self) -> int:
        """Returns the peak of a step on mps that `mps-trainer fit` computes."""
        made, state = self.trainer(OURS), rng_state()
        try:
            with as_on_mps(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return measure_step(made, largest_batch(made, 1)).bytes_peak
        finally:
            set_rng(state)

    def measure(self, name: str) -> tuple[float, int | None]:
        """Returns the time of a step, and the most bytes of tensors on the device; None where torch cannot tell.

        Raises:
            RuntimeError: if it trained on another device. Any other error is that of the Trainer.
        """
        device, timer = self.decision.device, StepTimer(self.decision.device, self.seconds)
        _forget(self.task.model, device)
        if device.type == "mps":
            limit_memory(device)  # for both: without a limit, a Mac would swap
        made = self.trainer(name, [timer])
        used = made.args.device.type
        if used != device.type:
            raise RuntimeError(f"it trains on {used} instead of {device.type}")
        made.train()
        if timer.seconds is None:
            raise RuntimeError(f"it ended after {made.state.global_step} steps")
        return timer.seconds, _peak(device)


def _forget(model: torch.nn.Module, device: torch.device) -> None:
    """Frees what an earlier run has left, and begins the peak of memory again."""
    for parameter in model.parameters():
        parameter.grad = None
    gc.collect()
    release_buffers(device)
    if _has_peak(device):
        torch.accelerator.reset_peak_memory_stats()


def _peak(device: torch.device) -> int | None:
    return torch.accelerator.max_memory_allocated() if _has_peak(device) else None


def _has_peak(device: torch.device) -> bool:
    """Returns True if torch knows the peak of memory on this device, which older releases do not on mps."""
    try:
        return device.type != "cpu" and torch.accelerator.max_memory_allocated() >= 0
    except (AttributeError, RuntimeError):
        return False
