"""The mean loss between two logs, kept on the device until it is read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

_OF_A_NUMBER = 16  # bytes: the storage of a loss that stands for itself
_KEPT = 512  # losses after which they are joined to one tensor, so that a long wait for a log keeps few small tensors


class LossMeter:
    """Keeps the losses of the steps on the device, and computes nothing with them there. Only `read`, `state` and
    `sum` wait for it.

    Args:
        device: where the losses are.
        skip_nonfinite: a nan or infinite loss counts as the mean of the steps since the last reading.
    """

    def __init__(self, device: torch.device, skip_nonfinite: bool) -> None:
        self.device = device
        self.skip_nonfinite = skip_nonfinite
        self.begin_at(0)

    def begin_at(self, step: int) -> None:
        """Counts from the step after `step` on."""
        self._sum = np.float32(0.0)  # of what was read since the last log
        self._joined: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._steps: list[int] = []  # of all losses that are not in `_sum`
        self.total = 0.0  # of all readings
        self.first_step = self.last_read_step = step

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Adds what one batch contributes to the loss of the update that follows `step`."""
        if loss.untyped_storage().nbytes() > _OF_A_NUMBER:
            loss = loss.clone()  # a part of something large, which would be kept for its sake
        self._losses.append(loss)
        self._steps.append(step)
        if len(self._losses) == _KEPT:
            self._joined.append(torch.stack([self._as_number(loss) for loss in self._losses]))
            self._losses = []

    def take_back(self, step: int) -> None:
        """Forgets what was added for the update that follows `step`, which has not come to its end."""
        while self._steps and self._steps[-1] == step:
            self._steps.pop()
            if self._losses:
                self._losses.pop()
            else:
                self._joined[-1] = self._joined[-1][:-1]
                if not len(self._joined[-1]):
                    self._joined.pop()

    def read(self, step: int, grad_norm: torch.Tensor | float | None) -> tuple[float, float | None]:
        """Mean loss of the steps since the last reading, and the gradient norm: one wait for the device."""
        norm = self._drain(grad_norm)
        steps = max(step - self.last_read_step, 1)
        loss_sum = float(self._sum)
        self.total += loss_sum
        self._sum = np.float32(0.0)
        self.last_read_step = step
        return loss_sum / steps, norm

    def mean(self, step: int) -> float:
        """Mean loss of all steps up to `step`."""
        if step > self.last_read_step:
            self.read(step, None)
        return self.total / max(step - self.first_step, 1)

    @property
    def sum(self) -> torch.Tensor:
        """Sum of the losses since the last reading, on the device."""
        self._drain(None)
        return torch.tensor(float(self._sum), device=self.device)

    def state(self) -> dict[str, Any]:
        self._drain(None)
        return {
            "sum": float(self._sum),
            "total": self.total,
            "first_step": self.first_step,
            "last_read_step": self.last_read_step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._sum = np.float32(state["sum"])
        self.total = state["total"]
        self.first_step = state["first_step"]
        self.last_read_step = state["last_read_step"]

    def _drain(self, grad_norm: torch.Tensor | float | None) -> float | None:
        """Brings what is on the device into `_sum`, and `grad_norm` along with it."""
        values = [*self._joined, *(self._as_number(loss) for loss in self._losses)]
        wants_norm = isinstance(grad_norm, torch.Tensor)
        if wants_norm:
            values.append(self._as_number(grad_norm))  # type: ignore[arg-type]
        numbers = torch.hstack(values).tolist() if values else []
        if wants_norm:
            grad_norm = numbers.pop()
        with np.errstate(all="ignore"):  # an overflow is what the device would have had
            for number, step in zip(numbers, self._steps, strict=True):
                if self.skip_nonfinite and not math.isfinite(number):
                    self._sum += self._sum / np.float32(1 + step - self.last_read_step)
                else:
                    self._sum += np.float32(number)
        self._joined, self._losses, self._steps = [], [], []
        return grad_norm  # type: ignore[return-value]

    def _as_number(self, loss: torch.Tensor) -> torch.Tensor:
        if loss.dtype == torch.float32 and loss.dim() == 0 and loss.device == self.device and not loss.requires_grad:
            return loss
        return loss.detach().to(device=self.device, dtype=torch.float32).reshape(())
