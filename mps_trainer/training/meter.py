"""The mean loss between two logs, kept on the device until it is read."""

from __future__ import annotations

from typing import Any

import torch


class LossMeter:
    """Sums the losses of the steps on the device. Only `read` and `state` wait for the device.

    Args:
        device: where the losses are.
        skip_nonfinite: a nan or infinite loss counts as the mean of the steps since the last reading.
    """

    def __init__(self, device: torch.device, skip_nonfinite: bool) -> None:
        self.sum = torch.zeros((), device=device)
        self.skip_nonfinite = skip_nonfinite
        self.begin_at(0)

    def begin_at(self, step: int) -> None:
        """Counts from the step after `step` on."""
        self.sum.zero_()
        self.total = 0.0  # of all readings
        self.first_step = self.last_read_step = step

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Adds what one batch contributes to the loss of the update that follows `step`."""
        if self.skip_nonfinite:
            loss = torch.where(torch.isfinite(loss), loss, self.sum / (1 + step - self.last_read_step))
        self.sum += loss

    def read(self, step: int, grad_norm: torch.Tensor | float | None) -> tuple[float, float | None]:
        """Mean loss of the steps since the last reading, and the gradient norm: one wait for the device."""
        if isinstance(grad_norm, torch.Tensor):
            loss_sum, norm = torch.stack([self.sum, grad_norm.to(self.sum)]).tolist()
        else:
            loss_sum, norm = self.sum.item(), grad_norm
        steps = max(step - self.last_read_step, 1)
        self.total += loss_sum
        self.sum.zero_()
        self.last_read_step = step
        return loss_sum / steps, norm

    def mean(self, step: int) -> float:
        """Mean loss of all steps up to `step`."""
        if step > self.last_read_step:
            self.read(step, None)
        return self.total / max(step - self.first_step, 1)

    def state(self) -> dict[str, Any]:
        return {
            "sum": self.sum.item(),
            "total": self.total,
            "first_step": self.first_step,
            "last_read_step": self.last_read_step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.sum.fill_(state["sum"])
        self.total = state["total"]
        self.first_step = state["first_step"]
        self.last_read_step = state["last_read_step"]
