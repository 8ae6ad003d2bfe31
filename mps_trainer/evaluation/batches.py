"""Iterates over the batches of an evaluation, marks the last one, and keeps processes in step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, SequentialSampler
from transformers.trainer_utils import has_length

from ..data.buckets import BucketBatchSampler
from ..data.epoch_loader import PrefetchIterator
from ..data.order import distributed_sampler
from ..data.samplers import RememberedOrder
from ..distributed import Processes

_END = object()


def is_sequential(loader: Any) -> bool:
    """Returns True if `loader` gives the rows in the order of its dataset."""
    sampler = _batch_sampler(loader)
    return type(sampler) is BatchSampler and type(sampler.sampler) is SequentialSampler


def order_of_rows(loader: Any) -> np.ndarray | None:
    """Returns the index in the dataset of each gathered row, after a pass by length; None for any other order."""
    sampler = _batch_sampler(loader)
    if isinstance(sampler, BucketBatchSampler):
        return None if sampler.shuffle else sampler.order()
    if isinstance(by_length := getattr(sampler, "sampler", None), RememberedOrder):
        count = len(by_length.latest)
        return np.array(by_length.latest[: count - count % sampler.batch_size if sampler.drop_last else count])
    return None


def examples_in(loader: Any, number: int, rows: int) -> int:
    """Returns the number of examples in the batch `number` of a pass, which a collator made into `rows` rows.

    These are as many unless it joins examples, as for packed sequences, or makes several rows of one.
    """
    sampler, distributed = _batch_sampler(loader), distributed_sampler(loader)
    is_divided = distributed is not None and (distributed.whole or distributed.even)  # a batch, or those of the end
    if is_divided or type(sampler) is not BatchSampler or not has_length(sampler.sampler):
        return rows
    if distributed is not None:
        number = number * distributed.size + distributed.rank
    left = len(sampler.sampler) - number * sampler.batch_size  # type: ignore[arg-type]
    return min(sampler.batch_size, left) if left > 0 else rows


def _batch_sampler(loader: Any) -> Any:
    """Returns the sampler of the batches of all processes."""
    distributed = distributed_sampler(loader)
    return getattr(loader, "batch_sampler", None) if distributed is None else distributed.batches


def with_last(batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yields each batch with True if it is the last one."""
    iterator = iter(batches)
    if isinstance(iterator, PrefetchIterator):  # two batches ahead, a model that draws would get other numbers
        yield from ((batch, iterator.loader.end_of_dataloader) for batch in iterator)
        return
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
