"""Undoes an update or an evaluation that did not end: a loss that is not finite, memory that ran out, a signal."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from .position import Position


class CountsOperations(Protocol):
    """Names what `Rollback` needs of a Trainer, in transformers' names."""

    current_flos: float


class Rollback:
    """Restores what an update or an evaluation changes beside weights, optimizer and schedule.

    Args:
        trainer: counts floating-point operations.
        model: has the buffers.
    """

    def __init__(self, trainer: CountsOperations, model: nn.Module, position: Position) -> None:
        self.trainer, self.model, self.position = trainer, model, position

    def snapshot(self, before_loading: bool = False, with_buffers: bool = True) -> dict[str, Any]:
        """Returns the state as it is now, for `restore`. Reads nothing from the device.

        Args:
            before_loading: True before the batches of an update are loaded; `restore` then ends the pass over the
                loader, so that these batches are loaded again.
            with_buffers: False before an evaluation, which changes no buffers of the model; they may be large.
        """
        return {
            "position": self.position.snapshot(before_loading),
            "operations": self.trainer.current_flos,
            "buffers": _buffers(self.model) if with_buffers else [],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Returns to the state that `snapshot` returned."""
        self.position.restore(saved["position"])
        self.trainer.current_flos = saved["operations"]
        with torch.no_grad():
            for buffer, value in saved["buffers"]:
                buffer.copy_(value)


def _buffers(model: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns each buffer that a forward pass may change, such as the means of a BatchNorm, with a copy of it."""
    return [
        (buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
