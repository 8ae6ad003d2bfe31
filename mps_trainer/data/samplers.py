"""Chooses the order of the examples in training and in evaluations: `train_sampling_strategy`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, RandomSampler, Sampler, SequentialSampler
from transformers import trainer_pt_utils
from transformers.trainer_utils import has_length

from ..errors import MisconfigurationException
from .buckets import BucketBatchSampler, LengthBuckets
from .columns import is_table
from .order import SeededSampler

if TYPE_CHECKING:
    from ..distributed import Processes
    from ..training_args import TrainingArguments

logger = logging.getLogger(__name__)


def train_sampler(
    dataset: Any, args: TrainingArguments, batch_size: int, processing_class: Any, processes: Processes
) -> Sampler | None:
    """Returns the order of the training examples; None for a stream and a dataset without length.

    Args:
        batch_size: batch size of the loader of one process; it may be smaller than in `args`.

    Raises:
        MisconfigurationException: for a strategy that this dataset, or several processes, cannot have.
    """
    if dataset is None or not has_length(dataset) or isinstance(dataset, IterableDataset):
        warn_of_order(dataset, args)
        return None
    if len(dataset) == 0:
        return SequentialSampler(dataset)  # the run explains an empty dataset better than RandomSampler does
    strategy, accumulation = args.train_sampling_strategy, args.gradient_accumulation_steps
    if strategy not in ("group_by_length", "batch_rebalance", "bucket_by_length"):
        return SequentialSampler(dataset) if strategy == "sequential" else RandomSampler(dataset)
    if strategy == "batch_rebalance" and processes.is_distributed:
        raise MisconfigurationException(
            f"train_sampling_strategy='batch_rebalance' works only in one process, and there are {processes.size}. "
            "Use 'bucket_by_length' or 'group_by_length'."
        )
    lengths = lengths_of(dataset, args.length_column_name, processing_class)
    seed = torch.initial_seed() if args.data_seed is None else args.data_seed
    if strategy == "group_by_length":
        update = args.train_batch_size * accumulation * processes.size
        order = trainer_pt_utils.LengthGroupedSampler(update, lengths=lengths)
        return SeededSampler(order, seed) if processes.is_distributed else order
    if strategy == "batch_rebalance":
        return _rebalanced(lengths, batch_size * accumulation, accumulation, args.dataloader_drop_last)
    size = batch_size * processes.size
    # A batch has two parts, each with examples of similar length, unless several batches make an update anyway, or a
    # part would have fewer than 8 examples. An update whose examples all have one length follows what is peculiar to
    # that length, and training in which every update does learns less, or at a high learning rate nothing: the page
    # on data has the measurements.
    chunks = 2 if accumulation == 1 and size >= 16 and size % 2 == 0 else 1
    settings: Any = {"num_buckets": args.num_length_buckets, "seed": seed, "drop_last": args.dataloader_drop_last}
    sampler = BucketBatchSampler(lengths, size // chunks, **settings)
    sampler.chunks = chunks
    return sampler


def training_buckets(trainer: Any) -> LengthBuckets | None:
    """Returns the length buckets of `train_dataset`, also before training; None if its order does not have any."""
    if trainer._mt_length_buckets is None and (dataset := trainer.train_dataset) is not None:
        kept = trainer._remove_unused_columns(dataset, description="Training") if is_table(dataset) else dataset
        trainer._get_train_sampler(kept)
    return trainer._mt_length_buckets


def eval_sampler(
    dataset: Any,
    args: TrainingArguments,
    processing_class: Any,
    buckets_of_training: Callable[[], LengthBuckets | None],
) -> Sampler | None:
    """Returns the order of an evaluation's examples, the same one each time; None for a dataset without length.

    Args:
        buckets_of_training: returns the lengths to pad to with bucket_by_length; None for the dataset's own lengths.
            On the CPU a batch is padded to its longest example.
    """
    if dataset is None or not has_length(dataset):
        return None
    strategy, by_length = args.train_sampling_strategy, ("bucket_by_length", "group_by_length")
    if strategy not in by_length or not args.eval_do_concat_batches or len(dataset) == 0:
        return SequentialSampler(dataset)
    lengths = lengths_of(dataset, args.length_column_name, processing_class)
    if strategy == "group_by_length":
        generator = torch.Generator(torch.get_default_device())
        generator.manual_seed(args.seed if args.data_seed is None else args.data_seed)
        return RememberedOrder(args.eval_batch_size, lengths=lengths, generator=generator)
    # only mps and compilers prepare for each new shape
    is_exact = args.device.type == "cpu" and not args.torch_compile
    longest = max(1, *lengths)
    buckets = LengthBuckets((longest,), exact=True) if is_exact else buckets_of_training()
    return BucketBatchSampler(
        lengths,
        args.eval_batch_size,
        buckets=None if buckets is None else buckets.up_to(longest),
        num_buckets=args.num_length_buckets,
        shuffle=False,
        drop_last=args.dataloader_drop_last,
    )


class RememberedOrder(trainer_pt_utils.LengthGroupedSampler):
    """Keeps the order of its latest pass: an evaluation puts its rows back into the order of the dataset."""

    latest: Sequence[int] = ()

    def __iter__(self) -> Iterator[int]:
        self.latest = tuple(super().__iter__())
        return iter(self.latest)


def _rebalanced(lengths: list[int], update: int, accumulation: int, drop_last: bool) -> Sampler[list[int]]:
    """Returns batches of differing size and equal cost, with `update` examples in an update on average.

    Raises:
        MisconfigurationException: for a release of transformers without them.
    """
    if (kind := getattr(trainer_pt_utils, "BatchRebalanceSampler", None)) is None:
        raise MisconfigurationException(
            "train_sampling_strategy='batch_rebalance' needs transformers' BatchRebalanceSampler, and the installed "
            "release has none. Install a newer one, or use train_sampling_strategy='group_by_length'."
        )
    return kind(lengths, update, dp_size=1, rank=0, grad_accum=accumulation, drop_last=drop_last)


def warn_of_order(dataset: Any, args: TrainingArguments) -> None:
    """Logs a warning if the examples of `dataset`, which has no length, should be ordered by length."""
    if dataset is not None and args.train_sampling_strategy not in ("random", "sequential"):
        logger.warning(
            "train_sampling_strategy='%s' has no effect: the training dataset is a stream or has no length, so its "
            "examples come in their own order.",
            args.train_sampling_strategy,
        )


# Lengths


def lengths_of(dataset: Any, column: str, processing_class: Any) -> list[int]:
    """Returns the length of each example: the dataset's `column`, or the length of the model's first input.

    Raises:
        MisconfigurationException: if there is no such column and nothing to measure.
    """
    if is_table(dataset) and column in dataset.column_names:
        lengths = dataset[column][:]
        return lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    names = getattr(processing_class, "model_input_names", None)
    name = names[0] if names else "input_ids"
    first = dataset[0]
    if not isinstance(first, Mapping) or name not in first:
        found = f"keys {', '.join(map(str, first))}" if isinstance(first, Mapping) else type(first).__name__
        raise MisconfigurationException(
            f"Examples cannot be grouped by length: they have no '{name}' to measure (an example is: {found}) and the "
            f"dataset no column '{column}'. Give it that column, or name another in length_column_name, with "
            "remove_unused_columns=False if the model does not take it; or use train_sampling_strategy='random'."
        )
    if (lengths := lengths_in_column(dataset, name)) is not None:
        return lengths
    return [len(dataset[i][name]) for i in range(len(dataset))]  # a loop over a Dataset without IndexError has no end


def lengths_in_column(dataset: Any, name: str) -> list[int] | None:
    """Returns the lengths of the lists in a table's column, without decoding them; None if examples may differ."""
    if not is_table(dataset) or name not in dataset.column_names:
        return None
    import pyarrow.compute as compute
    import pyarrow.types as types

    column = dataset.data.schema.field(name).type
    is_list = any(is_one(column) for is_one in (types.is_list, types.is_large_list, types.is_fixed_size_list))
    if not is_list or dataset.format["type"] == "custom":  # its function may make the examples longer or shorter
        return None
    lengths: list[int] = []
    for batch in dataset.select_columns(name).with_format("arrow").iter(batch_size=10_000):
        lengths.extend(compute.list_value_length(batch[name]).to_pylist())
    return lengths
