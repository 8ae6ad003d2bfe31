"""Adapts the loop to overridden methods of the Trainer. A run chooses its adapters once.

Each method is looked up when it is called, because a callback may replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..data.transfer import BatchTransfer
from ..overrides import Overrides
from .surface import TrainerSurface

RunBatch = Callable[[TrainerSurface, Any, Any, Any], torch.Tensor]


def batch_runner_for(overrides: Overrides, transfer: BatchTransfer) -> RunBatch:
    """Returns a function of Trainer, model, batch and number of items that runs a batch and returns its loss."""
    if not overrides.see_training_batches:
        return _run_batch
    move = transfer.before_other_code(True)

    def run_moved_batch(trainer: TrainerSurface, model: Any, batch: Any, num_items: Any) -> torch.Tensor:
        loss = trainer.training_step(model, move(batch), num_items)
        return loss.clone() if overrides.training_step else loss  # the override may change it in place later

    return run_moved_batch


def _run_batch(trainer: TrainerSurface, model: Any, batch: Any, num_items: Any) -> torch.Tensor:
    return trainer.training_step(model, batch, num_items)


class TokenCount:
    """Counts the tokens of updates: each process its own, and the processes exchange their sums once in an update."""

    def __init__(self, trainer: TrainerSurface) -> None:
        self.trainer = trainer
        self._before = 0

    def begin_update(self) -> None:
        self._before = self.trainer.state.num_input_tokens_seen

    def add(self, batch: Any, is_filler: bool) -> None:
        """Counts the tokens of a batch, unless it is a filler, whose example another process counts."""
        if not is_filler:
            self.trainer._track_num_input_tokens(batch)

    def end_update(self) -> None:
        state, processes = self.trainer.state, self.trainer._mt_processes
        if processes.is_distributed and self.trainer.args.include_num_input_tokens_seen != "no":
            own = state.num_input_tokens_seen - self._before
            state.num_input_tokens_seen = self._before + int(processes.sum([own])[0])


class OverriddenTokenCount(TokenCount):
    """Calls an overridden token count. Like transformers' own method, it already sums over all processes."""

    def add(self, batch: Any, is_filler: bool) -> None:
        self.trainer._track_num_input_tokens(batch)

    def end_update(self) -> None:
        pass
