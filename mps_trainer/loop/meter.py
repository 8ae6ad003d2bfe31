"""Averages the loss between two logs and keeps losses and gradient norms on the device until they are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..distributed import Processes
from ..guards.numbers import NumberWatch

_OF_A_NUMBER = 16  # bytes: a number with a larger storage is a part of another tensor
_KEPT = 512  # numbers are joined to one tensor when there are so many, so that a long wait for a log keeps few tensors


class _Unread:
    """Holds numbers on the device that were not read yet, each with the step and the learning rate of its update."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.joined: list[torch.Tensor] = []
        self.numbers: list[torch.Tensor] = []
        self.steps: list[int] = []
        self.rates: list[float | None] = []

    def add(self, number: torch.Tensor, step: int, rate: float | None = None) -> None:
        if number.untyped_storage().nbytes() > _OF_A_NUMBER:
            number = number.clone()  # a part of a large tensor would keep all of it in memory
        self.numbers.append(number)
        self.steps.append(step)
        self.rates.append(rate)
        if len(self.numbers) == _KEPT:
            self.joined, self.numbers = self.vectors(), []

    def vectors(self) -> list[torch.Tensor]:
        """Returns all numbers in few vectors of float32."""
        if not self.numbers:
            return self.joined
        return [*self.joined, torch.stack([_as_number(each, self.device) for each in self.numbers])]

    def copy(self) -> _Unread:
        copied = _Unread(self.device)
        vars(copied).update({name: list(value) for name, value in vars(self).items() if isinstance(value, list)})
        return copied


class LossMeter:
    """Keeps the losses of the steps on the device until they are read, for which the host waits for the device.

    They are read at these moments:

    - `read`: at each log, and by `mean` at the end of the run for the steps since the last log;
    - `state_dict`: at each save, with the position;
    - `read_norm`: before each step with `stop_on_nan`;
    - `sum`: after each step and each epoch if other code overrides `_maybe_log_save_evaluate`, which gets the sum.

    Args:
        device: where the losses are.
        skip_nonfinite: True to count a nan or infinite loss as the mean of the steps since the last reading.
        scaled: True if a gradient scaler handles gradients that overflow.
        processes: the processes of the run. The loss that is read is the mean of their losses.

    Attributes:
        watch: checks every loss and norm that is read.
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
        self._sum = np.float32(0.0)  # sums the losses that were read since the last log
        self._losses, self._norms = _Unread(self.device), _Unread(self.device)
        self.total = 0.0  # sums all readings
        self.first_step = self.last_read_step = step

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Adds one batch's part of the loss of the update after `step`."""
        self._losses.add(loss, step)

    def add_norm(self, norm: torch.Tensor | float | None, step: int, rate: float | None) -> None:
        """Adds the norm of the gradients of the update that follows `step`, and its learning rate."""
        if isinstance(norm, torch.Tensor):
            self._norms.add(norm, step, rate)
        elif norm is not None:
            self.watch.look((), [(float(norm), step, rate)])

    def read_norm(self, norm: torch.Tensor | float | None, step: int) -> float | None:
        """Returns the gradient norm of an update before its step. The same sync reads its losses."""
        value = self._drain(norm)
        self.add_norm(value, step, None)
        return value

    def read(self, step: int, grad_norm: torch.Tensor | float | None) -> tuple[float, float | None]:
        """Returns the mean loss since the last reading, and the gradient norm. One blocking device-to-host sync."""
        norm = self._drain(grad_norm)
        steps = max(step - self.last_read_step, 1)
        loss_sum = self.processes.sum([float(self._sum)])[0] / self.processes.size
        self.total += loss_sum
        self.mark_read(step)
        return loss_sum / steps, norm

    def mark_read(self, step: int) -> None:
        """Leaves the losses up to `step` out of the next reading."""
        self._sum = np.float32(0.0)
        self.last_read_step = step

    def mean(self, step: int) -> float:
        """Returns the mean loss of all steps up to `step`."""
        if step > self.last_read_step:
            self.read(step, None)
        return self.total / max(step - self.first_step, 1)

    @property
    def sum(self) -> torch.Tensor:
        """Returns the sum of the losses since the last reading, on the device."""
        self._drain(None)
        return torch.tensor(float(self._sum), device=self.device)

    def snapshot(self) -> tuple[Any, ...]:
        """Returns a copy of what was added, for `restore`. Reads nothing from the device."""
        unread = self._losses.copy(), self._norms.copy()
        return self._sum, self.total, self.first_step, self.last_read_step, *unread

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Returns to what `snapshot` returned."""
        self._sum, self.total, self.first_step, self.last_read_step, losses, norms = saved
        self._losses, self._norms = losses.copy(), norms.copy()

    def state_dict(self, grad_norm: torch.Tensor | float | None) -> dict[str, Any]:
        """Returns the losses since the last log, and the value of `grad_norm`, which the same sync reads."""
        norm = self._drain(grad_norm)
        return {
            "grad_norm": None if norm is None else float(norm),  # an override may give a NumPy number
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
        losses, self._losses = self._losses, _Unread(self.device)
        norms, self._norms = self._norms, _Unread(self.device)
        vectors = [*losses.vectors(), *norms.vectors()]
        is_among = bool(norms.numbers) and grad_norm is norms.numbers[-1]
        if isinstance(grad_norm, torch.Tensor) and not is_among:
            vectors.append(_as_number(grad_norm, self.device).reshape(1))
        numbers = torch.cat(vectors).tolist() if vectors else []
        if isinstance(grad_norm, torch.Tensor):
            grad_norm = numbers[-1] if is_among else numbers.pop()
        read, of_norms = numbers[: len(losses.steps)], numbers[len(losses.steps) :]
        with np.errstate(all="ignore"):  # the sum may overflow, as it would on the device
            for number, step in zip(read, losses.steps, strict=True):
                if self.skip_nonfinite and not math.isfinite(number):
                    self._sum += self._sum / np.float32(1 + step - self.last_read_step)
                else:
                    self._sum += np.float32(number)
        self.watch.look(zip(read, losses.steps, strict=True), zip(of_norms, norms.steps, norms.rates, strict=True))
        return grad_norm  # type: ignore[return-value]


def _as_number(number: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a detached scalar of float32 on `device`."""
    if number.dtype == torch.float32 and number.dim() == 0 and number.device == device and not number.requires_grad:
        return number
    return number.detach().to(device=device, dtype=torch.float32).reshape(())
