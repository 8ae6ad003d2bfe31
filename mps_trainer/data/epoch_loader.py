"""Prepares loaders for epochs: counts them, orders and divides the examples by seed and epoch, and prefetches."""

from __future__ import annotations

import array
import contextlib
import itertools
import multiprocessing
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    _DatasetKind,
)
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from transformers.trainer_utils import has_length

from ..checkpoints.rng import rng_state, set_rng
from ..errors import MisconfigurationException
from ..guards.signals import block_signals_during_worker_start
from .buckets import BucketBatchSampler, buckets_of
from .faults import explain_loading, explain_starting, no_advice_to_fork
from .missing_columns import ModelColumns
from .order import (
    DistributedBatchSampler,
    SeededSampler,
    ShareOfStream,
    distributed_sampler,
    evenly,
    is_distributed,
    set_epoch,
)
from .split import UnsplittableBatchError, examples_in
from .transfer import BatchTransfer
from .workers import WorkerInit, end_pass

if TYPE_CHECKING:
    from ..distributed import Processes
    from ..training_args import TrainingArguments

_END = object()
_UNKNOWN = object()  # stands for a value that was not asked for yet
_RECORDED = 2**14  # so many batches are recorded (5 MB if they have 32 rows): a loss is read at the next log


class EpochLoader(DataLoader):
    """Wraps a `DataLoader`: counts epochs, calls set_epoch() of sampler and dataset, and prefetches one batch.

    It prefetches like transformers' Trainer: where the collator or the dataset draws from torch's global generator, as
    for the masks of a masked language model, dropout and masks draw the same numbers in the same order.
    """

    iteration = 0
    end_of_dataloader = False  # whether the batch last given was the last of its epoch
    pass_number: int | None = None  # seeds workers that persist, see WorkerInit; None for the epoch
    made_for: Any = None  # the dataset before columns were removed
    columns: ModelColumns | None = None  # the columns that reach the model; None for a foreign loader
    made_with: tuple[Any, int | None] = None, None  # collator and batch size, if workers persist
    transfer: BatchTransfer | None = None  # moves the batches; None on the CPU
    rows: dict[tuple[int, int], Sequence[int]]  # the rows of the dataset, by epoch and number of the batch
    keeps_examples = False  # whether `examples` are kept, see `keep_examples`
    examples: dict[tuple[int, int], list[Any]]  # of a stream's batches, by epoch and number of the batch
    _first = 0  # the number of the first batch to load, while `iterate_once` begins a pass

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass."""
        self.iteration = epoch
        batch_sampler = self.batch_sampler
        sampler = self.sampler if batch_sampler is None else getattr(batch_sampler, "sampler", None)
        set_epoch(epoch, batch_sampler, sampler, self.dataset)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Returns the batches on the Trainer's device, as Accelerate's loaders do: code of users relies on it.

        The training loop takes them from `epoch_batches` instead, in the host's memory.
        """
        batches = PrefetchIterator(self)
        return batches if self.transfer is None else map(self.transfer, batches)

    def iterate_once(self, first: int = 0) -> Iterator[Any]:
        """Returns the batches of one pass from the batch number `first` on, without prefetching."""
        self.set_epoch(self.iteration)
        self.end_of_dataloader = False
        generator, collate = self.generator, self.collate_fn
        if self.keeps_examples:
            self.collate_fn = _KeepsExamples(collate)
        if isinstance(init := self.worker_init_fn, WorkerInit):
            init.begin_pass(self.iteration if self.pass_number is None else self.pass_number, self.iteration)
            if init.seed is not None and self.iteration > 0 and self._iterator is None:
                # In a resumed run workers drew their first seed in epoch 0.
                self.generator = torch.Generator(torch.get_default_device())
        context: Any = self.multiprocessing_context or multiprocessing
        spawns = self.num_workers > 0 and context.get_start_method() != "fork"
        torchs_advice = no_advice_to_fork() if spawns else contextlib.nullcontext()
        self._first = first
        with block_signals_during_worker_start(self.num_workers > 0, spawns), torchs_advice:
            try:
                return super().__iter__()
            except Exception as error:
                explain_starting(error, self)
                raise
            finally:
                self.generator, self.collate_fn, self._first = generator, collate, 0

    @property
    def _index_sampler(self) -> Any:
        """Returns what torch's iterators draw the indices of each batch from."""
        indices = super()._index_sampler
        return indices if isinstance(self.dataset, IterableDataset) else _RecordedIndices(indices, self)

    @property
    def total_batch_size(self) -> int | None:
        """Returns the number of examples in a batch over all processes."""
        distributed = distributed_sampler(self)
        size = self.batch_size if self.batch_size is not None else getattr(self.batch_sampler, "batch_size", None)
        return size if distributed is None or size is None else size * distributed.size

    @property
    def total_dataset_length(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


class _RecordedIndices:
    """Gives the indices of a sampler, and records in the loader which rows a batch has.

    torch's iterator holds it, and the loader that iterator: a reference back would leave the workers to the garbage
    collector, which ends them after 5 s.
    """

    def __init__(self, sampler: Any, loader: EpochLoader) -> None:
        self.sampler, self.loader = sampler, weakref.proxy(loader)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        recorded = self._recorded(iter(self.sampler), self.loader.rows, self.loader.iteration)
        return itertools.islice(recorded, self.loader._first, None)

    def _recorded(self, batches: Iterator[Any], rows: Any, epoch: int) -> Iterator[Any]:
        for number, indices in enumerate(batches):
            with contextlib.suppress(TypeError):  # a dataset may have other keys than numbers
                rows[epoch, number] = array.array("q", indices if isinstance(indices, (list, tuple)) else [indices])
            if len(rows) > _RECORDED:
                del rows[next(iter(rows))]
            yield indices


class _Collated(NamedTuple):
    """A batch, and its examples if it cannot be cut into them."""

    batch: Any
    examples: list[Any] | None


class _KeepsExamples:
    """Collates like `collate`, and returns the examples beside a batch that cannot be cut, also from a worker."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, examples: list[Any]) -> _Collated:
        kept = _copied(examples)
        batch = self.collate(examples)
        with contextlib.suppress(UnsplittableBatchError):
            if examples_in(batch) == len(kept):
                return _Collated(batch, None)
        return _Collated(batch, kept)


def _copied(examples: Sequence[Any]) -> list[Any]:
    """Returns the examples without entries that a collator adds to or takes from them."""
    return [dict(each) if type(each) is dict else each for each in examples]


class PrefetchIterator(Iterator[Any]):
    """Iterates over an `EpochLoader` and loads one batch ahead.

    Nothing is drawn or loaded before the first batch is asked for, or `begin` or `load_ahead` called.

    Args:
        skip: the number of batches at the beginning to leave out.
        load_skipped: True to load these in workers, whose generators then draw the same numbers. A stream loads them
            in any case.

    Attributes:
        records: whether to read the random number generators' states before each batch is loaded.
        before_waiting: the states before the batch that is loaded and not yet given; None without one. A resumed run
            loads that batch again, with the same draws.
        draws: whether loading the first batch changed the state of a generator; True before that.
    """

    def __init__(self, loader: EpochLoader, skip: int = 0, load_skipped: bool = False) -> None:
        self.loader = loader
        self.records, self.draws = False, True
        self.before_waiting: dict[str, Any] | None = None
        in_workers = loader.num_workers > 0 and not isinstance(loader.dataset, IterableDataset)
        self._number = skip if in_workers and not load_skipped else 0  # counts the batches of the epoch
        self._skip = skip - self._number
        self._batches: Iterator[Any] | None = None
        self._waiting: Any = _UNKNOWN

    def begin(self) -> None:
        """Begins the pass and leaves out the batches to skip."""
        self._batches = self.loader.iterate_once(first=self._number)
        indices = _indices(self._batches)
        for _ in range(self._skip):
            self._next(indices)

    def load_ahead(self) -> None:
        """Loads the first batch."""
        if self._batches is None:
            self.begin()
        before = _comparable_rng_state()
        self._load()
        self.draws = _comparable_rng_state() != before

    def __next__(self) -> Any:
        if self._waiting is _UNKNOWN:
            self.load_ahead()
        if self._waiting is _END:
            raise StopIteration
        batch = self._waiting
        self._load()
        return batch

    def close(self) -> None:
        """Ends the workers, which otherwise live as long as the process."""
        self._batches, self._waiting = iter(()), _END

    def _load(self) -> None:
        self.before_waiting = rng_state() if self.records else None
        self._waiting = self._next()
        if isinstance(self._waiting, _Collated):
            self._waiting, examples = self._waiting
            if examples is not None:
                self.loader.examples[self.loader.iteration, self._number - 1] = examples
        if self._waiting is _END:
            self.before_waiting = None
            self.loader.end_of_dataloader = True
            self.loader.iteration += 1

    def _next(self, indices: Iterator[Any] | None = None) -> Any:
        """Returns the next batch, or only draws its `indices`."""
        assert self._batches is not None
        try:
            batch = next(self._batches if indices is None else indices, _END)
        except Exception as error:
            explain_loading(error, self.loader, self._batches, self._number)
            if not self.loader.persistent_workers:
                end_pass(self._batches)
            raise
        self._number += 1
        return batch


def _comparable_rng_state() -> tuple[Any, ...]:
    state = rng_state()
    _, keys, position, *_ = state["numpy"]
    return state["python"], keys.tobytes(), position, state["cpu"].numpy().tobytes()


def prepare_loader(
    loader: Any, args: TrainingArguments, processes: Processes, whole: bool | None = None, even: bool = True
) -> Any:
    """Wraps a `DataLoader` in an `EpochLoader`, like Accelerate's prepare(). Other loaders are returned unchanged.

    With `use_seedable_sampler`, or several processes, whose global generators need not agree, a `RandomSampler` draws
    each epoch from `data_seed` + epoch, and with several processes also torch's other random samplers. Neither
    `dispatch_batches` nor `even_batches` changes anything: each process loads its own batches, and no example is
    repeated to make them even.

    Args:
        whole, even: how the batches are divided, see `DistributedBatchSampler`; `whole` is `split_batches` by default.

    Raises:
        MisconfigurationException: with several processes, for a dataset that gives whole batches.
    """
    if isinstance(loader, EpochLoader) or not isinstance(loader, DataLoader):
        return loader
    config: Any = args.accelerator_config
    changed: dict[str, Any] = {"transfer": None if args.device.type == "cpu" else BatchTransfer(args.device)}
    if loader.num_workers:
        persists = loader.persistent_workers
        changed["worker_init_fn"] = WorkerInit(loader.worker_init_fn, args.seed if persists else None, processes.rank)
    sampler: Any = getattr(loader.batch_sampler, "sampler", None)
    is_plain = isinstance(sampler, RandomSampler) and (config.use_seedable_sampler or processes.is_distributed)
    is_other = type(sampler) in (SubsetRandomSampler, WeightedRandomSampler) and processes.is_distributed
    if is_plain:
        sampler = RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples)
    if is_plain or (is_other and sampler.generator is None):
        seed = torch.initial_seed() if args.data_seed is None else args.data_seed
        loader.batch_sampler.sampler = SeededSampler(sampler, seed)  # type: ignore[union-attr]  # in place, as Accelerate
    prepared = _remade(loader, **changed)
    if processes.is_distributed:
        whole = config.split_batches if whole is None else whole
        seed = args.seed if args.data_seed is None else args.data_seed
        prepared = _distributed(prepared, processes, whole, even, seed)
    return prepared


def _distributed(loader: EpochLoader, processes: Processes, whole: bool, even: bool, seed: int) -> EpochLoader:
    """Returns `loader` with this process's share of the batches."""
    if is_distributed(loader):
        return loader
    # without `even`, all batches of the loader count: it has already left out an incomplete one
    drop_last = even and getattr(loader.batch_sampler, "drop_last", loader.drop_last)  # Accelerate asks it, too
    settings: dict[str, Any] = {"even": even, "drop_last": drop_last, "seed": seed}
    rank, size = processes.rank, processes.size
    if isinstance(loader.dataset, IterableDataset) and loader.batch_size is not None:
        own = -(-loader.batch_size // size) if whole else loader.batch_size
        stream = ShareOfStream(loader.dataset, own, rank, size, **settings)
        batches = BatchSampler(loader.sampler, own, drop_last)
        return _remade(loader, dataset=stream, batch_sampler=batches, batch_size=own, drop_last=drop_last)
    if loader.batch_sampler is None:
        raise MisconfigurationException(
            "The dataset gives whole batches (batch_size=None), which cannot be distributed to several processes. "
            "Let the DataLoader make the batches, or give the Trainer a loader of another class that gives each "
            "process its own batches."
        )
    share = DistributedBatchSampler(loader.batch_sampler, rank, size, whole=whole, **settings)
    return _remade(loader, batch_sampler=share, batch_size=None)


def read_alike(loader: Any, processes: Processes) -> None:
    """Gives all processes the first one's order of a stream that datasets shuffles or interleaves without a seed.

    All processes must call it. Making a loader does not: the first process alone may make one to show a batch.

    Raises:
        MisconfigurationException: if the processes have different parts of it.
    """
    if not isinstance(share := getattr(loader, "dataset", None), ShareOfStream):
        return
    if len(set(processes.gather(repr(getattr(share.dataset, "_distributed", None))))) > 1:
        raise MisconfigurationException(
            "The stream is split by node, and the Trainer divides streams among the processes too, so it would leave "
            "out examples. Leave split_dataset_by_node() out."
        )
    generators = list(_generators(share.dataset))
    states = processes.first_does(lambda: [each.bit_generator.state for each in generators])
    for generator, state in zip(generators, states, strict=True):
        generator.bit_generator.state = state


def _generators(thing: Any) -> Iterator[np.random.Generator]:
    """Yields NumPy's generators in a stream of datasets, whose steps hold one another."""
    if isinstance(thing, np.random.Generator):
        yield thing
    elif isinstance(thing, list):
        yield from itertools.chain.from_iterable(map(_generators, thing))
    elif type(thing).__module__ == "datasets.iterable_dataset":
        yield from itertools.chain.from_iterable(map(_generators, vars(thing).values()))


def _remade(loader: DataLoader, **changed: Any) -> EpochLoader:
    """Returns an `EpochLoader` with the attributes of `loader`, but for those given, and its own workers."""
    made = EpochLoader.__new__(EpochLoader)
    changed = {"_iterator": None, "rows": {}, "examples": {}, **changed}
    vars(made).update(vars(loader), **changed)  # DataLoader does not let some of them be set
    return made


def epoch_batches(loader: Any, epoch: int, skip: int = 0, load_skipped: bool = False) -> Iterator[Any]:
    """Returns the batches of an epoch in its order, without the first `skip`.

    `loader` may be any iterable of batches. Skipped batches are not loaded where the order is known beforehand.

    Args:
        load_skipped: load skipped batches if there are workers, so that their generators draw the same numbers.
    """
    set_epoch(epoch, loader)
    if isinstance(loader, EpochLoader):
        return PrefetchIterator(loader, skip, load_skipped)
    batches = iter(loader)
    skipped = _indices(batches) or batches
    for _ in range(skip):
        next(skipped, None)
    return batches


def keep_examples(loader: Any) -> None:
    """Makes the loader of a stream keep the examples of batches that cannot be cut, for `load_in_parts`.

    The owner of the loader deletes the examples of earlier updates from `loader.examples`.
    """
    if isinstance(loader, EpochLoader) and isinstance(loader.dataset, IterableDataset):
        loader.keeps_examples = loader.batch_size is not None  # otherwise the stream gives whole batches


def load_in_parts(loader: EpochLoader, rows: Sequence[Any], most: int) -> list[Any]:
    """Returns the batches that the loader's collator makes of these rows, of at most `most` and nearly equal size.

    Restores the random generators, so the run draws the same numbers as without this.

    Args:
        rows: their indices in the dataset, or the examples themselves of a stream, which cannot be read again.
    """
    drawn, dataset = rng_state(), loader.dataset
    fetch = getattr(dataset, "__getitems__", None)
    try:
        if isinstance(dataset, IterableDataset):
            found: Any = _copied(rows)
        else:
            found = fetch(list(rows)) if callable(fetch) else [dataset[row] for row in rows]
        count = -(-len(rows) // most)
        return [loader.collate_fn(evenly(found, number, count)) for number in range(count)]
    finally:
        set_rng(drawn)


def _indices(batches: Iterator[Any]) -> Iterator[Any] | None:
    """Returns the indices of `batches`, if this process loads each of them from its indices."""
    if isinstance(batches, _SingleProcessDataLoaderIter) and batches._dataset_kind == _DatasetKind.Map:
        return batches._sampler_iter
    return None


def host_batches(loader: Any) -> Iterator[Any]:
    """Returns the batches of one pass in host memory, where the Trainer checks and counts them without waiting."""
    is_ours = type(loader).__iter__ is EpochLoader.__iter__
    return PrefetchIterator(loader) if is_ours else iter(loader)


def order_of(loader: Any) -> SeededSampler | BucketBatchSampler | None:
    """Returns the sampler that orders a loader's examples by seed and epoch; None if it has another."""
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return sampler if isinstance(sampler, SeededSampler) else buckets_of(loader)


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
