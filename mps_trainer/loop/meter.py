"""Averages the loss between two logs and keeps losses and gradient norms on the device until they are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..distributed import Processes
from ..guards.numbers import NumberWatch

_OF_A_NUMBER = 16  # bytes: the storage of a loss that stands for itself
_FIXED = ("device", "processes", "skip_nonfinite", "watch")  # attributes of a meter that no loss changes
_KEPT = 512  # losses after which they are joined to one tensor, so that a long wait for a log keeps few small tensors


class LossMeter:
    """Keeps the losses of the steps on the device, and computes nothing with them there. Only `read`, `read_norm`,
    `state_dict` and `sum` wait for it.

    Args:
        device: where the losses are.
        skip_nonfinite: a nan or infinite loss counts as the mean of the steps since the last reading.
        scaled: whether a gradient scaler looks after gradients that overflow.
        processes: the loss that is read is the mean of theirs.

    Attributes:
        watch: has looked at every loss and norm that was read.
    """

    def __init__(
        self,
        device: torch.device,
        skip_nonfinite: bool,
        scaled: bool = False,
        processes: Processes = Processes(),  # noqa: B008 - one that is alone has nothing that changes
    ) -> None:
        self.device = device
        self.processes = processes
        self.skip_nonfinite = skip_nonfinite
        self.watch = NumberWatch(scaled)
        self.reset(0)

    def reset(self, step: int) -> None:
        """Counts from the step after `step` on."""
        self._sum = np.float32(0.0)  # of what was read since the last log
        self._joined: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._steps: list[int] = []  # of all losses that are not in `_sum`
        self._joined_norms: list[torch.Tensor] = []
        self._norms: list[torch.Tensor] = []
        self._norm_steps: list[int] = []  # of all norms that were not read
        self._rates: list[float | None] = []  # of the same steps
        self.total = 0.0  # of all readings
        self.first_step = self.last_read_step = step

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Adds one batch's part of the loss of the update after `step`."""
        if loss.untyped_storage().nbytes() > _OF_A_NUMBER:
            loss = loss.clone()  # a part of something large, which would be kept for its sake
        self._losses.append(loss)
        self._steps.append(step)
        if len(self._losses) == _KEPT:
            self._joined.append(self._join(self._losses))
            self._losses = []

    def add_norm(self, norm: torch.Tensor | float | None, step: int, rate: float | None) -> None:
        """Adds the norm of the gradients of the update that follows `step`, and its learning rate."""
        if not isinstance(norm, torch.Tensor):
            if norm is not None:
                self.watch.look((), (), (float(norm),), (step,), (rate,))
            return
        if norm.untyped_storage().nbytes() > _OF_A_NUMBER:
            norm = norm.clone()
        self._norms.append(norm)
        self._norm_steps.append(step)
        self._rates.append(rate)
        if len(self._norms) == _KEPT:
            self._joined_norms.append(self._join(self._norms))
            self._norms = []

    def read_norm(self, norm: torch.Tensor | float | None, step: int) -> float | None:
        """Returns the gradient norm of an update before its step. The same sync reads its losses."""
        if not isinstance(norm, torch.Tensor):
            self.add_norm(norm, step, None)
            self._drain(None)
            return norm
        value = self._drain(norm)
        assert value is not None
        self.watch.look((), (), (value,), (step,), (None,))
        return value

    def read(self, step: int, grad_norm: torch.Tensor | float | None) -> tuple[float, float | None]:
        """Returns the mean loss since the last reading, and the gradient norm. One blocking device-to-host sync."""
        norm = self._drain(grad_norm)
        steps = max(step - self.last_read_step, 1)
        loss_sum = self.processes.sum([float(self._sum)])[0] / self.processes.size
        self.total += loss_sum
        self._sum = np.float32(0.0)
        self.last_read_step = step
        return loss_sum / steps, norm

    def mean(self, step: int) -> float:
        """Returns the mean loss of all steps up to `step`."""
        if step > self.last_read_step:
            self.read(step, None)
        return self.total / max(step - self.first_step, 1)

    @property
    def sum(self) -> torch.Tensor:
        """Sum of the losses since the last reading, on the device."""
        self._drain(None)
        return torch.tensor(float(self._sum), device=self.device)

    def snapshot(self) -> dict[str, Any]:
        """Returns a copy of what was added, for `restore`. Reads nothing from the device."""
        kept = {name: value for name, value in vars(self).items() if name not in _FIXED}
        return {name: list(value) if isinstance(value, list) else value for name, value in kept.items()}

    def restore(self, saved: dict[str, Any]) -> None:
        """Returns to what `snapshot` returned."""
        vars(self).update({name: list(value) if isinstance(value, list) else value for name, value in saved.items()})

    def state_dict(self) -> dict[str, Any]:
        self._drain(None)
        return {
            "sum": float(self._sum),
            "total": self.total,
            "first_step": self.first_step,
            "last_read_step": self.last_read_step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum = np.float32(state["sum"])
        self.total = state["total"]
        self.first_step = state["first_step"]
        self.last_read_step = state["last_read_step"]

    def _drain(self, grad_norm: torch.Tensor | float | None) -> float | None:
        """Reads losses and `grad_norm` from the device into `_sum` in one sync, and checks that they are finite."""
        values = [*self._joined, *self._parts(self._losses), *self._joined_norms, *self._parts(self._norms)]
        is_among = bool(self._norms) and grad_norm is self._norms[-1]
        if isinstance(grad_norm, torch.Tensor) and not is_among:
            values.append(self._as_number(grad_norm).reshape(1))
        numbers = torch.cat(values).tolist() if values else []
        if isinstance(grad_norm, torch.Tensor):
            grad_norm = numbers[-1] if is_among else numbers.pop()
        losses, norms = numbers[: len(self._steps)], numbers[len(self._steps) :]
        with np.errstate(all="ignore"):  # an overflow is what the device would have had
            for number, step in zip(losses, self._steps, strict=True):
                if self.skip_nonfinite and not math.isfinite(number):
                    self._sum += self._sum / np.float32(1 + step - self.last_read_step)
                else:
                    self._sum += np.float32(number)
        self.watch.look(losses, self._steps, norms, self._norm_steps, self._rates)
        self._joined, self._losses, self._steps = [], [], []
        self._joined_norms, self._norms, self._norm_steps, self._rates = [], [], [], []
        return grad_norm  # type: ignore[return-value]

    def _parts(self, numbers: list[torch.Tensor]) -> list[torch.Tensor]:
        return [self._join(numbers)] if numbers else []

    def _join(self, numbers: list[torch.Tensor]) -> torch.Tensor:
        """Returns `numbers` as one vector in float32; numbers of one format are cast together."""
        kind = numbers[0].dtype, numbers[0].device
        if all((each.dtype, each.device) == kind and each.dim() == 0 for each in numbers):
            return torch.stack(numbers).detach().to(device=self.device, dtype=torch.float32)
        return torch.stack([self._as_number(each) for each in numbers])

    def _as_number(self, loss: torch.Tensor) -> torch.Tensor:
        if loss.dtype == torch.float32 and loss.dim() == 0 and loss.device == self.device and not loss.requires_grad:
            return loss
        return loss.detach().to(device=self.device, dtype=torch.float32).reshape(())
