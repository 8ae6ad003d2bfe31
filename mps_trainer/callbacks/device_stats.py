"""Logs the memory of the device and the load of the machine together with the loss."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from ..devices import ACCELERATORS

_SHOWN = ("_bytes", "_percent")


class DeviceStatsMonitor(TrainerCallback):
    """Adds the accelerator's `get_device_stats` to each log of the loss, in the history and for trackers.

    On mps: `mps_allocated_bytes` in tensors, `mps_driver_allocated_bytes` with what torch keeps for later,
    `mps_recommended_max_bytes`; on cuda and xpu the device's allocated, reserved and total bytes. Everywhere
    `process_rss_bytes`, `memory_available_bytes`, `swap_used_bytes`, `swap_percent`, and `cpu_percent`: how much of
    the time of all processors was used since the last log. The host counts all of them: nothing waits for the device.

    The logs of evaluations and of the whole run stay as they are: they are metrics, which a search may add up.
    """

    # The Trainer calls it before the trackers. transformers' Trainer has no such thing: there the history has the
    # figures, and trackers do not.
    adds_to_logs = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._figures(args)  # from here on the load of the processors is measured

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        figures = self._figures(args)
        logs.update(figures)
        # the entry was copied from `logs` before callbacks hear of them
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(figures)

    def _figures(self, args: Any) -> dict[str, float]:
        stats = ACCELERATORS[args.device.type].get_device_stats(args.device)
        return {name: value for name, value in stats.items() if name.endswith(_SHOWN)}


def call_first_who_add_to_logs(callbacks: list[Any]) -> None:
    """Moves the callbacks that add to logs before the others; the order stays otherwise."""
    callbacks.sort(key=lambda callback: getattr(type(callback), "adds_to_logs", False) is not True)
