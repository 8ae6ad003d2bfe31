"""The order in which an epoch visits the examples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class EpochOrder(Sampler[int]):
    """Indices of one epoch, a function of seed and epoch alone, so that a run can return to any position in it.

    Args:
        size: number of examples.
        seed: epoch `e` is shuffled with `seed + e`, the order that transformers' Trainer gives the same data.
        shuffle: if False, the dataset's own order.
    """

    def __init__(self, size: int, seed: int, shuffle: bool = True) -> None:
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self._start = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def start_at(self, position: int) -> None:
        """Leaves out the first `position` examples of the next pass, and of that pass only."""
        self._start = position

    def __iter__(self) -> Iterator[int]:
        start, self._start = self._start, 0
        if not self.shuffle:
            return iter(range(start, self.size))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.size, generator=generator).tolist()[start:])

    def __len__(self) -> int:
        return self.size
