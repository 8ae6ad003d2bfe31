"""Iterates over the batches of an evaluation, marks the last one, and keeps processes in step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, SequentialSampler

from ..data.buckets import BucketBatchSampler
from ..data.order import DistributedBatchSampler
from ..distributed import Processes


def in_dataset_order(loader: Any) -> bool:
    """Returns True if the gathered predictions for `loader` are in the order of its dataset."""
    sampler: Any = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, DistributedBatchSampler):
        sampler = sampler.batches
    if isinstance(sampler, BucketBatchSampler):
        return not sampler.shuffle  # the evaluation puts their rows back
    return type(sampler) is BatchSampler and type(sampler.sampler) is SequentialSampler


def watching_for_last(batches: Iterable[Any], state: Any) -> Iterator[Any]:
    """Yields `batches`; `state.end_of_dataloader` is True while the last of them is worked on."""
    state.end_of_dataloader = False
    iterator = iter(batches)
    nothing = object()
    batch = next(iterator, nothing)
    while batch is not nothing:
        following = next(iterator, nothing)
        state.end_of_dataloader = following is nothing
        yield batch
        batch = following


def in_step(batches: Iterable[Any], processes: Processes) -> Iterator[tuple[Any, bool]]:
    """Yields the batches of this process with True if they count. Every process gets the same number of batches.

    A block of a sharded model is gathered from all of them, so that a process that has run out computes its last
    batch, or one of another's, for as long as another has some.
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
            lender = processes.gather(own is not None).index(True)
            lent = processes.gather(own if processes.rank == lender else None)[lender]
            last = lent if last is None else last
        if batch is None:
            yield last, False
        else:
            last = batch
            yield batch, True
