"""Computes the order of the examples in an epoch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler


class SeededRandomSampler(RandomSampler):
    """Samples like a `RandomSampler`, as a function of seed and epoch only, so that a run can resume anywhere.

    Epoch `e` is drawn from a generator seeded with `seed + e`, the order that transformers' Trainer gives the same
    data. Torch's global generator is left alone, so the order does not depend on dropout, nor dropout on it.

    Args:
        sampler: what to draw from, how many, and whether with replacement. A generator of its own is seeded anew.
        seed: of epoch 0.
    """

    def __init__(self, sampler: RandomSampler, seed: int) -> None:
        super().__init__(
            sampler.data_source,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
            generator=sampler.generator if sampler.generator is not None else torch.Generator(),
        )
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        assert self.generator is not None
        self.generator.manual_seed(self.seed + self.epoch)
        yield from super().__iter__()
        self.epoch += 1

    def order_of(self, epoch: int) -> Iterator[int]:
        """Returns the order of any epoch, without disturbing the pass in progress."""
        again = copy.copy(self)
        again.generator, again.epoch = torch.Generator(), epoch
        return iter(again)


class SeededOrder(Sampler[int]):
    """Orders examples like a sampler with a `generator`, as a function of seed and epoch only.

    Several processes need one order, and their global generators drift apart with what each of them trains on.
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        self.sampler, self.seed, self.epoch = sampler, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        yield from self.sampler
        self.epoch += 1


class LaterBatches(BatchSampler):
    """Skips the first `skip` batches of a batch sampler without loading their examples.

    Args:
        reached: called when these are past, before the first batch that is given is loaded.
    """

    def __init__(self, batch_sampler: Any, skip: int, reached: Callable[[], None] | None = None) -> None:
        self.batch_sampler = batch_sampler
        self.skip = skip
        self.reached = reached

    def set_epoch(self, epoch: int) -> None:
        tell_epoch(epoch, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))

    def __iter__(self) -> Iterator[Any]:
        for position, batch in enumerate(self.batch_sampler):
            if position == self.skip and self.reached is not None:
                self.reached()
            if position >= self.skip:
                yield batch

    def __len__(self) -> int:
        return max(len(self.batch_sampler) - self.skip, 0)


def tell_epoch(epoch: int, *parts: Any) -> None:
    """Calls set_epoch(epoch) on those of `parts` that have it."""
    for part in parts:
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)
