"""Loads batches: counts epochs, prefetches, and resumes in the middle of an epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter
from transformers.trainer_utils import has_length

from ..errors import MisconfigurationException
from ..guards.signals import IgnoringInterrupts, workers_begin_deaf
from .buckets import BucketBatchSampler, buckets_of
from .faults import explain_loading, explain_starting
from .order import LaterBatches, SeededRandomSampler, tell_epoch
from .shares import DistributedBatchSampler, ShareOfStream, is_shared, shares_of
from .worker_seeds import WorkerSeeds

if TYPE_CHECKING:
    from ..distributed import Processes

_KEPT = (  # settings that a loader made from another takes over, beside the dataset and the batching
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
_END = object()


class EpochLoader(DataLoader):
    """Wraps a `DataLoader`: counts epochs, calls set_epoch() of sampler and dataset, and prefetches one batch.

    One ahead, because transformers' Trainer loads so: where the collator or the dataset draws from torch's global
    generator, as the masks of a masked language model do, dropout and masks come out the same in the same order.
    """

    iteration = 0
    end_of_dataloader = False  # whether the batch last given was the last of its epoch
    pass_number: int | None = None  # for what workers that persist draw, see WorkerSeeds; None for the epoch
    made_for: Any = None  # the dataset of an evaluation whose workers persist, before columns were removed

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass."""
        self.iteration = epoch
        batch_sampler = self.batch_sampler
        sampler = self.sampler if batch_sampler is None else getattr(batch_sampler, "sampler", None)
        tell_epoch(epoch, batch_sampler, sampler, self.dataset)

    def __iter__(self) -> PrefetchIterator:  # type: ignore[override]
        return PrefetchIterator(self)

    def begin(self) -> Iterator[Any]:
        """Returns the batches of one pass, without prefetching."""
        self.set_epoch(self.iteration)
        self.end_of_dataloader = False
        seeds = worker_seeds_of(self)
        if seeds is not None:
            number = self.iteration if self.pass_number is None else self.pass_number
            seeds.begin(number, self.iteration)
        generator = self.generator
        if seeds is not None and self.iteration > 0 and self._iterator is None:
            self.generator = torch.Generator()  # a resumed run: its workers drew their first seed in epoch 0
        with workers_begin_deaf(self.num_workers > 0):
            try:
                batches = super().__iter__()
            except Exception as error:
                explain_starting(error, self)
                raise
            finally:
                self.generator = generator
        return _unwatched(batches)

    @property
    def total_batch_size(self) -> int | None:
        """Returns the number of examples in a batch over all processes."""
        share = shares_of(self)
        size = self.batch_size if self.batch_size is not None else getattr(self.batch_sampler, "batch_size", None)
        return size if share is None or size is None else size * share.size

    @property
    def total_dataset_length(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


def worker_seeds_of(loader: Any) -> WorkerSeeds | None:
    """Returns the `WorkerSeeds` of `loader`; None if it has no persistent workers."""
    prepare = getattr(loader, "worker_init_fn", None)
    prepare = prepare.then if isinstance(prepare, IgnoringInterrupts) else None
    return prepare if isinstance(prepare, WorkerSeeds) else None


def _unwatched(batches: Iterator[Any]) -> Iterator[Any]:
    """Returns the `batches` of a loader without workers minus a note to torch's profiler, 0.02 ms for each."""
    load = getattr(batches, "_next_data", None)
    if type(batches) is not _SingleProcessDataLoaderIter or load is None or torch.autograd._profiler_enabled():
        return batches
    if isinstance(getattr(batches, "_dataset", None), IterableDataset):
        return batches  # which warns if there are more than the dataset said
    return _calls(load)


def _calls(load: Callable[[], Any]) -> Iterator[Any]:
    while True:
        try:
            batch = load()
        except StopIteration:
            return
        yield batch


class PrefetchIterator(Iterator[Any]):
    """Iterates over an `EpochLoader` and loads one batch ahead.

    Nothing is drawn or loaded before the first batch is asked for, or `start` called.

    Args:
        skip: batches at the beginning to load and leave out.
        before_first: called when these are past, before the first batch that is given is loaded.

    Attributes:
        snapshot: if set, called before each batch is loaded; gives the random number generators' state.
        before_waiting: the state before the batch that is loaded and not yet given; None without one. A resumed run
            loads that batch again, with the same draws.
        draws: whether loading the first batch changed the state of Python's, NumPy's or torch's generator.
    """

    def __init__(self, loader: EpochLoader, skip: int = 0, before_first: Callable[[], None] | None = None) -> None:
        self.loader = loader
        self.snapshot: Callable[[], Any] | None = None
        self.before_waiting: Any = None
        self.draws = False
        self._skip, self._before_first = skip, before_first
        self._batches: Iterator[Any] | None = None
        self._waiting: Any = _END

    def start(self) -> None:
        """Loads the first batch."""
        self._batches = self.loader.begin()
        for _ in range(self._skip):
            self._next()
        if self._before_first is not None:
            self._before_first()
        before = _generators()
        self._load()
        self.draws = _generators() != before

    def __next__(self) -> Any:
        if self._batches is None:
            self.start()
        if self._waiting is _END:
            raise StopIteration
        batch = self._waiting
        self._load()
        return batch

    def close(self) -> None:
        """Ends the workers, which otherwise live as long as the process."""
        self._batches, self._waiting = iter(()), _END

    @property
    def may_be_left(self) -> bool:
        """Returns True if a later pass can resume after the batch last given, and come to the same batches."""
        return not self.draws or self._waiting is _END or self.before_waiting is not None

    def _load(self) -> None:
        self.before_waiting = None if self.snapshot is None else self.snapshot()
        self._waiting = self._next()
        if self._waiting is _END:
            self.before_waiting = None
            self.loader.end_of_dataloader = True
            self.loader.iteration += 1

    def _next(self) -> Any:
        assert self._batches is not None
        try:
            return next(self._batches, _END)
        except Exception as error:
            explain_loading(error, self.loader, self._batches)
            raise


def _generators() -> tuple[Any, ...]:
    """Returns the states of the generators for a comparison."""
    _, keys, position, *_ = np.random.get_state(legacy=True)
    return random.getstate(), keys.tobytes(), position, torch.get_rng_state().numpy().tobytes()  # type: ignore[union-attr]


def prepare_loader(
    loader: Any,
    *,
    seedable: bool = True,
    data_seed: int | None = None,
    seed: int = 0,
    processes: Processes | None = None,
    whole: bool = False,
    even: bool = True,
) -> Any:
    """Wraps a `DataLoader` in an `EpochLoader`, like Accelerate's prepare(). Other loaders are returned unchanged.

    Args:
        seedable: a `RandomSampler` draws each epoch from `data_seed` + epoch, not from torch's global generator. It
            always does with several processes, whose global generators need not agree.
        data_seed: None for the seed that torch was last given.
        seed: of the run, from which workers that persist are seeded in each pass.
        processes: of the run; each has its share of the batches.
        whole, even: how they are shared out, see `DistributedBatchSampler`.
    """
    if isinstance(loader, EpochLoader) or not isinstance(loader, DataLoader):
        return loader
    batching = _batching(loader)
    if loader.num_workers and loader.persistent_workers:
        rank = 0 if processes is None else processes.rank
        batching["worker_init_fn"] = WorkerSeeds(loader.worker_init_fn, seed, rank)
    prepared = _another(EpochLoader, loader, **batching)
    sampler = getattr(prepared.batch_sampler, "sampler", None)
    several = processes is not None and processes.is_distributed
    if (seedable or several) and isinstance(sampler, RandomSampler) and not isinstance(sampler, SeededRandomSampler):
        order = SeededRandomSampler(sampler, torch.initial_seed() if data_seed is None else data_seed)
        prepared.batch_sampler.sampler = order
    return prepared if processes is None else _shared(prepared, processes, whole, even)


def _shared(loader: EpochLoader, processes: Processes, whole: bool, even: bool) -> EpochLoader:
    """Returns `loader` with this process's share of the batches.

    Raises:
        MisconfigurationException: for a loader that does not make the batches, whose dataset gives them.
    """
    if not processes.is_distributed or is_shared(loader):
        return loader
    rank, size, drop_last = processes.rank, processes.size, loader.drop_last
    if isinstance(loader.dataset, IterableDataset) and loader.batch_size is not None:
        own = -(-loader.batch_size // size) if whole else loader.batch_size
        stream = ShareOfStream(loader.dataset, own, rank, size, even=even, drop_last=drop_last)
        return _another(EpochLoader, loader, dataset=stream, batch_size=own, drop_last=drop_last)
    if loader.batch_sampler is None:
        raise MisconfigurationException(
            "The dataset gives whole batches (batch_size=None), which cannot be distributed to several processes. "
            "Let the DataLoader make the batches, or give the Trainer a loader of another class that gives each "
            "process its own batches."
        )
    share = DistributedBatchSampler(loader.batch_sampler, rank, size, whole=whole, even=even, drop_last=drop_last)
    return _another(EpochLoader, loader, batch_sampler=share)


def epoch_batches(
    loader: Any, epoch: int, skip: int = 0, before_first: Callable[[], None] | None = None, exactly: bool = False
) -> Iterator[Any]:
    """Returns the batches of an epoch in its order, without the first `skip`.

    Where the order is known beforehand, the batches left out are not even loaded; but `exactly`, with workers, whose
    generators would not be where they were. `loader` may be anything that gives
    batches; one that was not prepared is told the epoch only if it has set_epoch itself, as in transformers.

    Args:
        before_first: called after all that an epoch draws to begin, before the first batch that is given is loaded.
    """
    again = exactly and getattr(loader, "num_workers", 0) > 0
    if skip and not again and (later := _without_first(loader, skip, before_first)) is not None:
        loader, skip, before_first = later, 0, None
    tell_epoch(epoch, loader)
    if isinstance(loader, EpochLoader):
        return PrefetchIterator(loader, skip, before_first)
    batches = iter(loader)
    for _ in range(skip):
        next(batches, None)
    if before_first is not None:
        before_first()
    return batches


def order_of(loader: Any) -> SeededRandomSampler | BucketBatchSampler | None:
    """Returns the sampler that orders a loader's examples by seed and epoch; None if it has another."""
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return sampler if isinstance(sampler, SeededRandomSampler) else buckets_of(loader)


def close_workers(loader: Any) -> None:
    """Ends the worker processes that a loader with `persistent_workers` keeps; a later pass starts others.

    Left to garbage collection they take up to 5 s each, because the queues that tell them to end may be gone first.
    """
    iterator = getattr(loader, "_iterator", None) if getattr(loader, "persistent_workers", False) else None
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        loader._iterator = None
        iterator._shutdown_workers()


def length_of(loader: Any) -> int | None:
    """Returns the number of batches in an epoch; None for a stream that does not know."""
    return len(loader) if has_length(loader) else None


def num_examples(loader: Any, batch_size: int) -> int:
    """Returns the number of examples of `loader`, estimated from its batches if its dataset has no length."""
    try:
        dataset = loader.dataset
        return len(dataset.dataset if isinstance(dataset, ShareOfStream) else dataset)
    except (AttributeError, TypeError):
        return (length_of(loader) or 0) * batch_size


def _batching(loader: DataLoader) -> dict[str, Any]:
    """Returns the settings of `loader` that decide which examples make a batch."""
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_size is None and loader.batch_sampler is None:
        return {"batch_size": None, "sampler": loader.sampler}
    if type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None:
        return {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}
    return {"batch_sampler": loader.batch_sampler}


def _without_first(loader: Any, skip: int, reached: Callable[[], None] | None) -> DataLoader | None:
    """Returns a loader for one pass without the first batches; None if they have to be loaded."""
    kind = EpochLoader if isinstance(loader, EpochLoader) else DataLoader
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not kind.__iter__:
        return None
    if isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_sampler is not None:
        return _another(kind, loader, batch_sampler=LaterBatches(loader.batch_sampler, skip, reached))
    return _another(kind, loader, batch_size=None, sampler=LaterBatches(loader.sampler, skip, reached))


def _another(kind: type[DataLoader], loader: DataLoader, **batching: Any) -> Any:
    settings = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)} | batching
    prepare = settings["worker_init_fn"]
    if loader.num_workers and kind is EpochLoader and not isinstance(prepare, IgnoringInterrupts):
        settings["worker_init_fn"] = IgnoringInterrupts(prepare)
    return kind(**{"dataset": loader.dataset, **settings})
