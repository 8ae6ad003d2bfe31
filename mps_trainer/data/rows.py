"""Computes on demand from which rows of the dataset a batch was made. Steps do not store them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from .buckets import BucketBatchSampler
from .order import LaterBatches, SeededRandomSampler
from .shares import DistributedBatchSampler

_SHOWN = 32  # rows that a message names


def rows_of_batches(loader: Any, epoch: int, first: int, count: int = 1) -> list[int] | None:
    """Returns the indices of the rows of `count` batches of an epoch, from batch number `first` (from 0) on.

    None where the order cannot be drawn again: a stream, a sampler that keeps no seed, a loader of one's own.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    alone = loader.batch_sampler is None
    sampler: Any = loader.sampler if alone else loader.batch_sampler
    if isinstance(sampler, LaterBatches):
        sampler, first = sampler.batch_sampler, first + sampler.skip
    batches: Iterable[Iterable[int]] | None
    if alone:
        order = _order(sampler, epoch)
        batches = None if order is None else ([row] for row in order)
    else:
        batches = _batches(sampler, epoch)
    if batches is None:
        return None
    return [int(row) for batch in itertools.islice(batches, first, first + count) for row in batch]


def _batches(sampler: Any, epoch: int) -> Iterable[Iterable[int]] | None:
    if isinstance(sampler, BucketBatchSampler):
        return sampler.batches_of(epoch)
    if isinstance(sampler, DistributedBatchSampler):
        everybodys = _batches(sampler.batches, epoch)
        return None if everybodys is None else sampler.of(everybodys)
    if type(sampler) is not BatchSampler:
        return None
    order = _order(sampler.sampler, epoch)
    return None if order is None else BatchSampler(order, sampler.batch_size, sampler.drop_last)


def _order(sampler: Any, epoch: int) -> Iterable[int] | None:
    if isinstance(sampler, SeededRandomSampler):
        return sampler.order_of(epoch)
    return range(len(sampler.data_source)) if type(sampler) is SequentialSampler else None


def naming(rows: list[int]) -> str:
    """Returns `rows` in words: "row 7", "rows 3, 5, 9", and the number of the rest if there are many."""
    shown = ", ".join(map(str, rows[:_SHOWN]))
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return f"row{'s' if len(rows) != 1 else ''} {shown}{more}"
