"""A bar with an estimate of the time left, and one line for each log."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers.trainer_callback import ProgressCallback as TransformersProgressCallback

from ..data.buckets import buckets_of

_SHOWN = {"loss": "loss {:.4f}", "learning_rate": "lr {:.2e}", "grad_norm": "grad norm {:.3g}"}
_UNITS = {"flos", "runtime"}


class ProgressCallback(TransformersProgressCallback):
    """transformers' bars; its dictionaries as lines: step, epoch, loss, learning rate, samples/s, memory."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        if state.is_world_process_zero:
            parameters = sum(parameter.numel() for parameter in kwargs["model"].parameters())
            several = f" in {args.world_size} processes" if args.world_size > 1 else ""
            print(f"Training on {args.device}{several}: {args.decision.reason}")
            print(f"  {parameters / 1e6:.1f} M parameters, {state.max_steps} steps of {self._batch} examples")
            if (buckets := buckets_of(kwargs.get("train_dataloader"))) is not None:
                print(f"  {buckets}")
        super().on_train_begin(args, state, control, **kwargs)
        self._at_last_log = (state.global_step, time.perf_counter())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        if "loss" in logs:
            self.training_bar.write(" | ".join(self._line(args, state, logs)))
        else:
            numbers = (f"{name} {value:.4g}" for name, value in logs.items() if _is_shown(name, value))
            self.training_bar.write(f"step {state.global_step} | " + " | ".join(numbers))

    def close(self) -> None:
        """For a run that ends in an error, whose words begin a line of their own."""
        for name in ("training_bar", "prediction_bar"):
            if (bar := getattr(self, name)) is not None:
                bar.close()
                setattr(self, name, None)

    def _line(self, args: Any, state: Any, logs: dict[str, Any]) -> list[str]:
        step, now = state.global_step, time.perf_counter()
        last_step, last_time = self._at_last_log
        self._at_last_log = (step, now)
        parts = [f"step {step}/{state.max_steps}", f"epoch {state.epoch:.2f}"]
        parts += [text.format(logs[name]) for name, text in _SHOWN.items() if logs.get(name) is not None]
        if now > last_time and step > last_step:
            parts.append(f"{(step - last_step) * self._batch / (now - last_time):.1f} samples/s")
        if (memory := memory_in_use(args.device)) is not None:
            parts.append(f"{memory / 2**30:.2f} GiB")
        return parts


def memory_in_use(device: torch.device) -> int | None:
    """Bytes that tensors take on `device`, or None where the device does not tell. Does not wait for it."""
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    if device.type in ("cuda", "xpu"):
        return getattr(torch, device.type).memory_allocated(device)
    return None


def _is_shown(name: str, value: Any) -> bool:
    return isinstance(value, (int, float)) and not any(name.endswith(unit) for unit in _UNITS)
