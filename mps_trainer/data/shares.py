"""Distributes the examples of a batch over the processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from torch.utils.data import IterableDataset, Sampler

from .order import tell_epoch


@dataclass(eq=False, repr=False)
class DistributedBatchSampler(Sampler[list[int]]):
    """Yields the batches of one process. All processes get the same number.

    Consecutive batches of `batches` make one batch of all processes: the first process has the first of them. The end
    of an epoch, with too few batches for all, is shared out evenly in training, so that an update has the examples
    that it has with one process, and no example twice. A process that is left without an example computes with
    another's: see `padding_batches`.

    Args:
        batches: a batch sampler.
        rank: of this process, from 0.
        size: number of processes.
        whole: each batch of `batches` is one of all processes, to be split between them.
        even: share out the end of an epoch evenly. If not, the last processes have none of it.
        drop_last: leave out the end of an epoch if there are not batches for all processes.

    Attributes:
        padding_batches: numbers, in this epoch, of batches whose examples are another process's, and do not count.
    """

    batches: Any
    rank: int
    size: int
    _: KW_ONLY
    whole: bool = False
    even: bool = True
    drop_last: bool = False
    padding_batches: set[int] = field(default_factory=set, init=False)

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
        tell_epoch(epoch, self.batches, self.sampler)

    def __len__(self) -> int:
        if self.whole:
            return len(self.batches)
        groups, rest = divmod(len(self.batches), self.size)
        return groups + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        self.padding_batches = set()
        for number, (share, is_own) in enumerate(self._shares(self.batches)):
            if not is_own:
                self.padding_batches.add(number)
            yield share

    def of(self, batches: Iterable[Any]) -> Iterator[list[int]]:
        """Yields this process's share of any batches; an empty one where it only has padding."""
        for share, is_own in self._shares(batches):
            yield share if is_own else []

    def _shares(self, batches: Iterable[Any]) -> Iterator[tuple[list[int], bool]]:
        iterator = iter(batches)
        while group := list(itertools.islice(iterator, 1 if self.whole else self.size)):
            if self.whole or len(group) < self.size:
                if not self.whole and self.drop_last:
                    return
                yield self._share_of_end(group)
            else:
                yield list(group[self.rank]), True

    def _share_of_end(self, group: list[Any]) -> tuple[list[int], bool]:
        if self.even or self.whole:
            examples = [example for batch in group for example in batch]
            share = evenly(examples, self.rank, self.size)
        else:
            share = list(group[self.rank]) if self.rank < len(group) else []
        return (share, True) if share else ([group[0][0]], False)


def evenly(examples: Any, rank: int, size: int) -> Any:
    """Returns the part of `examples` that process `rank` of `size` has; the first ones have one more if need be."""
    least, more = divmod(len(examples), size)
    begin = rank * least + min(rank, more)
    return examples[begin : begin + least + (rank < more)]


@dataclass(eq=False, repr=False)
class ShareOfStream(IterableDataset):
    """Yields one process's examples of a stream that every process reads.

    Args:
        dataset: gives the same examples in every process.
        batch_size: examples of one process in a batch.
        even: share out evenly the examples that do not fill a batch of all processes; a process that is left without
            one has the last one as well, which then counts more than once. If not, the last processes have none.
        drop_last: leave those examples out.
    """

    dataset: Any
    batch_size: int
    rank: int
    size: int
    _: KW_ONLY
    even: bool = True
    drop_last: bool = False

    def set_epoch(self, epoch: int) -> None:
        tell_epoch(epoch, self.dataset)

    def __len__(self) -> int:
        groups, rest = divmod(len(self.dataset), self.batch_size * self.size)
        return groups * self.batch_size + len(self._share_of_end(list(range(rest))))

    def __iter__(self) -> Iterator[Any]:
        examples = iter(self.dataset)
        together = self.batch_size * self.size
        while group := list(itertools.islice(examples, together)):
            yield from self._own(group) if len(group) == together else self._share_of_end(group)

    def _own(self, group: list[Any]) -> list[Any]:
        return group[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]

    def _share_of_end(self, group: list[Any]) -> list[Any]:
        if self.drop_last or not group:
            return []
        return evenly(group, self.rank, self.size) or group[-1:] if self.even else self._own(group)


def is_shared(loader: Any) -> bool:
    """Returns True if each process loads different batches."""
    return shares_of(loader) is not None or isinstance(getattr(loader, "dataset", None), ShareOfStream)


def is_padding(loader: Any, number: int) -> bool:
    """Returns True if the batch `number` of this epoch of `loader` is another process's."""
    share = shares_of(loader)
    return share is not None and number in share.padding_batches


def shares_of(loader: Any) -> DistributedBatchSampler | None:
    """Returns the sampler of this process's share of the batches of `loader`; None if it has all of them."""
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if isinstance(sampler, DistributedBatchSampler) else None
