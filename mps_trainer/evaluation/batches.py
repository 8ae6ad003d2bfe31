"""Iterates over the batches of an evaluation, marks the last one, and keeps processes in step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, SequentialSampler

from ..data.buckets import BucketBatchSampler
from ..data.order import distributed_sampler
from ..distributed import Processes

_END = object()


def in_dataset_order(loader: Any) -> bool:
    """Returns True if the gathered predictions for `loader` are in the order of its dataset."""
    distributed = distributed_sampler(loader)
    sampler: Any = getattr(loader, "batch_sampler", None) if distributed is None else distributed.batches
    if isinstance(sampler, BucketBatchSampler):
        return not sampler.shuffle  # the evaluation puts its rows back into the order of the dataset
    return type(sampler) is BatchSampler and type(sampler.sampler) is SequentialSampler


def with_last(batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yields each batch with True if it is the last one."""
    iterator = iter(batches)
    batch = next(iterator, _END)
    while batch is not _END:
        following = next(iterator, _END)
        yield batch, following is _END
        batch = following


def in_step(batches: Iterable[Any], processes: Processes) -> Iterator[tuple[Any, bool]]:
    """Yields the batches of this process with True if they count. Every process gets the same number of batches.

    A block of a sharded model is gathered from all processes. A process that has run out therefore computes its last
    batch, or another process's, for as long as another has some.
    """
    iterator = iter(batches)
    last = None
    while True:
        batch = next(iterator, None)
        ended, has_none = processes.sum([batch is None, batch is None and last is None])
        if ended == processes.size:
            return
        if has_none:
            own = last if batch is None else batch
            source = processes.gather(own is not None).index(True)
            copies = processes.gather(own if processes.rank == source else None)
            last = copies[source] if last is None else last
        if batch is None:
            yield last, False
        else:
            last = batch
            yield batch, True
