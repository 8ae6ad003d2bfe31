"""The order of the examples in an epoch, and the share of it that each process gets."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, IterableDataset, Sampler, get_worker_info


def set_epoch(epoch: int, *receivers: Any) -> None:
    """Calls set_epoch(epoch) of the receivers that have it."""
    for receiver in receivers:
        if callable(method := getattr(receiver, "set_epoch", None)):
            method(epoch)


@dataclass(eq=False, repr=False)
class SeededSampler(Sampler[int]):
    """Draws the order of each epoch from a generator seeded with `seed` + epoch, so that a run can resume anywhere.

    It is the order that transformers' Trainer gives the same data. torch's global generator is left alone, so the
    order does not depend on dropout, and all processes draw the same one.

    Args:
        sampler: a RandomSampler, a LengthGroupedSampler, or another that draws from its attribute `generator`.
        seed: the seed of epoch 0.
    """

    sampler: Any
    seed: int
    epoch: int = field(default=0, init=False)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        sampler = copy.copy(self.sampler)
        sampler.generator = torch.Generator(torch.get_default_device()).manual_seed(self.seed + self.epoch)
        yield from sampler
        self.epoch += 1


@dataclass(eq=False, repr=False)
class DistributedBatchSampler(Sampler[list[int]]):
    """Yields the batches of one process. All processes get the same number, and no example twice.

    `size` consecutive batches of `batches` make one batch of all processes: the first process has the first of them.
    The examples at the end of an epoch, too few for a batch in each process, are divided evenly in training, so that
    the last update has the examples that it has in one process. A process that gets none of them computes with an
    example of another: see `filler_batches`.

    Args:
        whole: each batch of `batches` is divided between all processes.
        even: divide the end of an epoch evenly. If not, the last processes get none of it.
        drop_last: leave out the end of an epoch if there are fewer batches than processes.
        seed: seeds what a sampler draws from the global generators in epoch 0.

    Attributes:
        filler_batches: indices, in this epoch, of batches that repeat an example of another process. They are excluded
            from the loss.
    """

    batches: Any
    rank: int
    size: int
    _: KW_ONLY
    whole: bool = False
    even: bool = True
    drop_last: bool = False
    seed: int = 0
    epoch: int = field(default=0, init=False)
    filler_batches: set[int] = field(default_factory=set, init=False)

    @property
    def sampler(self) -> Any:
        """Returns the sampler that the batches are made from, if there is one."""
        return getattr(self.batches, "sampler", None)

    @property
    def batch_size(self) -> int | None:
        """Returns the number of examples in a batch of this process."""
        size = getattr(self.batches, "batch_size", None)
        return size if size is None or not self.whole else -(-size // self.size)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        set_epoch(epoch, self.batches, self.sampler)

    def __len__(self) -> int:
        if self.whole:
            return len(self.batches)
        groups, rest = divmod(len(self.batches), self.size)
        return groups + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        self.filler_batches = set()
        groups = drawn_alike(self.batches, 1 if self.whole else self.size, self.seed + self.epoch)
        for number, group in enumerate([list(batch) for batch in group] for group in groups):
            # a group makes one batch of all processes
            is_end = not self.whole and len(group) < self.size
            if is_end and self.drop_last:
                return
            if self.whole or (is_end and self.even):
                own = evenly(list(itertools.chain(*group)), self.rank, self.size)
            else:
                own = group[self.rank] if self.rank < len(group) else []
            if not own:
                self.filler_batches.add(number)
            yield own or group[0][:1]


def evenly(examples: Any, rank: int, size: int) -> Any:
    """Returns the slice of `examples` for process `rank` of `size`; the first ones get one more if need be."""
    least, more = divmod(len(examples), size)
    start = rank * least + min(rank, more)
    return examples[start : start + least + (rank < more)]


@dataclass(eq=False, repr=False)
class ShareOfStream(IterableDataset):
    """Yields one process's examples of a stream that every process reads.

    Args:
        dataset: gives the same examples in every process; what it draws is the same in all.
        batch_size: examples in a batch of one process.
        even: divide evenly the examples that do not fill a batch of all processes. A process that would get none
            repeats the last one. If not, the last processes get none of them.
        drop_last: leave those examples out.
        seed: seeds what the stream draws from the global generators in epoch 0.
    """

    dataset: Any
    batch_size: int
    rank: int
    size: int
    _: KW_ONLY
    even: bool = True
    drop_last: bool = False
    seed: int = 0
    epoch: int = field(default=0, init=False)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        set_epoch(epoch, self.dataset)

    def __len__(self) -> int:
        groups, rest = divmod(len(self.dataset), self.batch_size * self.size)
        return groups * self.batch_size + len(self._own(list(range(rest))))

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        seed = self.seed + self.epoch + (0 if worker is None else worker.id << 16)
        for group in drawn_alike(self.dataset, self.batch_size * self.size, seed):
            yield from self._own(group)

    def _own(self, group: list[Any]) -> list[Any]:
        is_end = len(group) < self.batch_size * self.size
        if is_end and self.drop_last:
            return []
        if is_end and self.even:
            return evenly(group, self.rank, self.size) or group[-1:]
        return group[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]


def drawn_alike(items: Any, size: int, seed: int) -> Iterator[list[Any]]:
    """Yields groups of `size` items, and lets all processes draw the same numbers from the host's global generators.

    Inside, the generators have other states, which `seed` begins. Their states in training differ among processes
    after dropout in batches of different shapes: samplers or streams that shuffle by them would repeat and omit
    examples.
    """
    others, iterator = _states(), None
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.random.default_generator.manual_seed(seed)  # torch.manual_seed would seed the device as well
    while True:
        try:
            iterator = iter(items) if iterator is None else iterator
            group = list(itertools.islice(iterator, size))
        finally:
            own = _states()
            _set_states(others)
        if not group:
            return
        yield group
        others = _states()
        _set_states(own)


def _states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def distributed_sampler(loader: Any) -> DistributedBatchSampler | None:
    """Returns the batch sampler with this process's share of the batches of `loader`; None if it has all of them."""
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if isinstance(sampler, DistributedBatchSampler) else None


def is_distributed(loader: Any) -> bool:
    """Returns True if each process loads different batches, which a `DistributedSampler` of torch may give it, too."""
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    has_share = distributed_sampler(loader) is not None or isinstance(sampler, DistributedSampler)
    return has_share or isinstance(getattr(loader, "dataset", None), ShareOfStream)


def is_filler(loader: Any, number: int) -> bool:
    """Returns True if the batch `number` of this epoch of `loader` repeats an example of another process."""
    sampler = distributed_sampler(loader)
    return sampler is not None and number in sampler.filler_batches
