"""Length buckets: a small set of padded lengths, and batches of examples that share one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from ..errors import MisconfigurationException
from .order import distributed_sampler

_STEP = 8  # lengths are multiples of it, which matrix units compute fastest


@dataclass(frozen=True)
class LengthBuckets:
    """The lengths to which batches are padded.

    Args:
        lengths: token counts, ascending.
        exact: pad each batch to its longest example instead, which is faster where no shape has to be compiled.
    """

    lengths: tuple[int, ...]
    exact: bool = False

    def __post_init__(self) -> None:
        if not self.lengths or self.lengths[0] < 1 or list(self.lengths) != sorted(set(self.lengths)):
            raise MisconfigurationException(
                f"LengthBuckets({self.lengths!r}): lengths must be positive and strictly increasing, and at least one."
            )

    @classmethod
    def fitted(cls, lengths: Sequence[int] | np.ndarray, count: int = 7) -> LengthBuckets:
        """Returns the at most `count` lengths with which examples of these `lengths` need the fewest padded tokens.

        Each is a multiple of 8, or the length of the longest example, which is the last.

        Raises:
            MisconfigurationException: without an example, or for a count below 1.
        """
        lengths = np.asarray(lengths, dtype=np.int64)
        if not lengths.size or count < 1:
            raise MisconfigurationException(
                f"Cannot make {count} length buckets for {lengths.size} examples: at least one bucket and one example "
                "are needed."
            )
        longest = max(int(lengths.max()), 1)
        edges = np.append(np.arange(_STEP, longest, _STEP), longest)
        examples = np.bincount(np.searchsorted(edges, lengths), minlength=len(edges))
        taken = np.flatnonzero(examples)
        return cls(_cheapest(edges[taken], np.cumsum(examples[taken]), count))

    def up_to(self, longest: int) -> LengthBuckets:
        """Returns these, and multiples of 8 beyond them up to `longest`: a model may have no more positions."""
        beyond = range((self.lengths[-1] // _STEP + 1) * _STEP, longest, _STEP)
        return self if longest <= self.lengths[-1] else replace(self, lengths=(*self.lengths, *beyond, longest))

    def length_for(self, length: int) -> int:
        """Returns the padded length of a batch whose longest example has `length` tokens.

        Beyond the last bucket it is the next multiple of 8: an evaluation may have longer examples than training.
        """
        return int(self.lengths_for(np.asarray([length]))[0])

    def lengths_for(self, lengths: np.ndarray) -> np.ndarray:
        """Returns `length_for` of each length."""
        if self.exact:
            return np.maximum(lengths, 1)
        buckets = np.asarray(self.lengths)
        found = buckets[np.minimum(np.searchsorted(buckets, lengths), len(buckets) - 1)]
        return np.where(lengths > buckets[-1], -(-lengths // _STEP) * _STEP, found)

    def __str__(self) -> str:
        return ", ".join(map(str, self.lengths))


def _cheapest(edges: np.ndarray, below: np.ndarray, count: int) -> tuple[int, ...]:
    """Returns at most `count` of `edges`, the last among them, with the fewest padded tokens in all.

    Args:
        below: for each edge, the number of examples that are no longer.
    """
    cost = edges * below  # tokens if all examples up to an edge are padded to it
    before: list[np.ndarray] = []  # each entry allows one bucket more, and has the best edge before each edge
    for _ in range(1, min(count, len(edges))):
        previous, cost = cost, cost.copy()
        came_from = np.full(len(edges), -1)
        for last in range(1, len(edges)):
            split = previous[:last] + edges[last] * (below[last] - below[:last])
            cheapest = int(split.argmin())
            if split[cheapest] < cost[last]:
                cost[last], came_from[last] = split[cheapest], cheapest
        before.append(came_from)
    chosen, edge = [], len(edges) - 1
    while edge >= 0:
        chosen.append(int(edges[edge]))
        edge = int(before.pop()[edge]) if before else -1
    return tuple(reversed(chosen))


class BucketBatchSampler(Sampler[list[int]]):
    """Batches whose examples are padded to one length, for any `DataLoader`'s `batch_sampler`.

    There are as many batches as with an ordinary sampler, and all are full but the last. The examples that remain of a
    bucket after its last full batch go into the first batch of the next longer one; the last batch has some of the
    shortest. Examples within a bucket and the order of the batches are drawn anew each epoch, from a generator seeded
    with `seed` + epoch. `set_epoch` sets the epoch; otherwise each pass is the next one.

    Args:
        lengths: the number of tokens of each example.
        batch_size: examples in a batch of one process.
        buckets: default: fitted to the lengths.
        num_buckets: the maximum number of buckets to fit.
        shuffle: if false, the batches are always the same, from the shortest examples to the longest.
        drop_last: leave out examples that do not fill a batch: any, or without `shuffle` the dataset's last.
        num_replicas: the number of processes, each with a share of every batch of `batch_size` x `num_replicas`
            examples. They get equally many batches of equal size; for that, the last batch may repeat examples.
        rank: the rank of this process.

    Attributes:
        chunks: the number of consecutive batches that this package's Trainer trains on as one batch of the arguments.

    Raises:
        MisconfigurationException: for sizes below 1, or no lengths.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        batch_size: int,
        *,
        buckets: LengthBuckets | None = None,
        num_buckets: int = 7,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        if batch_size < 1 or not 0 <= rank < num_replicas:
            raise MisconfigurationException(
                f"batch_size={batch_size}, num_replicas={num_replicas} and rank={rank} are not accepted: a batch has "
                "at least one example, and a rank is below the number of replicas, from 0."
            )
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.buckets = LengthBuckets.fitted(self.lengths, num_buckets) if buckets is None else buckets
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.num_replicas, self.rank = num_replicas, rank
        self.chunks, self.epoch = 1, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.lengths), self.batch_size * self.num_replicas)
        return whole + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.batches_of(self.epoch)
        self.epoch += 1

    def batches_of(self, epoch: int) -> Iterator[list[int]]:
        """Returns the batches of any epoch."""
        for batch in self._batches(epoch):
            yield batch[self.rank :: self.num_replicas].tolist()

    def order(self) -> np.ndarray:
        """Returns the indices of all processes' examples, in the order of the next epoch."""
        return np.concatenate([*self._batches(self.epoch), np.empty(0, np.int64)])

    def padded_per_real(self) -> float:
        """Returns the tokens of padded batches for each token of an example."""
        batches = self._batches(self.epoch)
        longest = np.array([self.lengths[batch].max() for batch in batches], dtype=np.int64)
        sizes = np.array([len(batch) for batch in batches], dtype=np.int64)
        real = sum(int(self.lengths[batch].sum()) for batch in batches)
        return float((self.buckets.lengths_for(longest) * sizes).sum() / max(real, 1))

    def __str__(self) -> str:
        length = "their longest example" if self.buckets.exact else f"{self.buckets} tokens"
        padding = 1 - 1 / max(self.padded_per_real(), 1.0)
        return f"batches of {self.batch_size}, padded to {length}; padding: {padding:.0%} of tokens"

    def _batches(self, epoch: int) -> list[np.ndarray]:
        """Returns the batches of an epoch, each with the examples of all processes."""
        size = self.batch_size * self.num_replicas
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order = np.arange(len(self.lengths))
        rest = len(order) % size
        if self.shuffle:
            order = torch.randperm(len(order), generator=generator, device="cpu").numpy()
        if self.drop_last:
            order, rest = order[: len(order) - rest], 0
        keys = self.buckets.lengths_for(self.lengths[order]) if self.shuffle else self.lengths[order]
        order = order[np.argsort(keys, kind="stable")]
        whole = order[rest:].reshape(-1, size)
        if self.shuffle:
            whole = whole[torch.randperm(len(whole), generator=generator, device="cpu").numpy()]
        fill = -rest % self.num_replicas
        return [*whole, np.resize(order[:rest], rest + fill)] if rest else list(whole)


def buckets_of(loader: Any) -> BucketBatchSampler | None:
    """Returns the sampler of a loader whose batches are made from length buckets; None for any other."""
    distributed = distributed_sampler(loader)
    sampler = getattr(loader, "batch_sampler", None) if distributed is None else distributed.batches
    return sampler if isinstance(sampler, BucketBatchSampler) else None
