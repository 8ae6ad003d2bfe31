"""Chooses the order of the examples in training and in evaluations: `train_sampling_strategy`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, RandomSampler, Sampler, SequentialSampler
from transformers.trainer_utils import has_length

from ..arguments.data import parts_of_batch
from ..errors import MisconfigurationException
from .buckets import BucketBatchSampler, LengthBuckets
from .columns import is_table
from .lengths import LENGTH_STRATEGIES, group_by_length, lengths_of, rebalanced_batches
from .order import SeededOrder

if TYPE_CHECKING:
    from ..distributed import Processes
    from ..training_args import TrainingArguments

logger = logging.getLogger(__name__)


def train_sampler(
    dataset: Any, args: TrainingArguments, batch_size: int, processing_class: Any, processes: Processes
) -> Sampler | None:
    """Returns the order of the training examples; None for a dataset without length.

    Args:
        batch_size: of the loader of one process; it may be smaller than that of `args`.

    Raises:
        MisconfigurationException: for a strategy that this dataset, or several processes, cannot have.
    """
    if dataset is None or not has_length(dataset):
        warn_of_order(dataset, args)
        return None
    if len(dataset) == 0:
        return SequentialSampler(dataset)  # the run says what is wrong; a RandomSampler would in its own terms
    strategy, column = args.train_sampling_strategy, args.length_column_name
    accumulation = args.gradient_accumulation_steps
    seed = torch.initial_seed() if args.data_seed is None else args.data_seed
    if strategy == "group_by_length":
        update = args.train_batch_size * accumulation * processes.size
        order = group_by_length(dataset, update, column, processing_class)
        return SeededOrder(order, seed) if processes.is_distributed else order
    if strategy == "batch_rebalance":
        if processes.is_distributed:
            raise MisconfigurationException(
                "train_sampling_strategy='batch_rebalance' works only in one process, and there are "
                f"{processes.size}. Use 'bucket_by_length' or 'group_by_length'."
            )
        drop_last = args.dataloader_drop_last
        return rebalanced_batches(dataset, batch_size, accumulation, column, processing_class, drop_last)
    if strategy == "bucket_by_length":
        together = batch_size * processes.size
        parts = parts_of_batch(together, accumulation)
        sampler = BucketBatchSampler(
            lengths_of(dataset, column, processing_class),
            together // parts,
            num_buckets=args.num_length_buckets,
            seed=seed,
            drop_last=args.dataloader_drop_last,
        )
        sampler.parts = parts
        return sampler
    return SequentialSampler(dataset) if strategy == "sequential" else RandomSampler(dataset)


def eval_sampler(
    dataset: Any,
    args: TrainingArguments,
    processing_class: Any,
    training_buckets: Callable[[], LengthBuckets | None],
) -> Sampler | None:
    """Returns the order of an evaluation's examples, the same one each time; None for a dataset without length.

    Args:
        training_buckets: returns the lengths to pad to with bucket_by_length; None for lengths of the dataset's own.
            On the CPU a batch is padded to its longest example.
    """
    if dataset is None or not has_length(dataset):
        return None
    strategy, column = args.train_sampling_strategy, args.length_column_name
    if strategy == "bucket_by_length" and len(dataset) > 0 and args.eval_do_concat_batches:
        lengths = lengths_of(dataset, column, processing_class)
        # only mps and compilers prepare themselves anew for each shape
        is_exact = args.device.type == "cpu" and not args.torch_compile
        return BucketBatchSampler(
            lengths,
            args.eval_batch_size,
            buckets=LengthBuckets((max(1, *lengths),), exact=True) if is_exact else training_buckets(),
            num_buckets=args.num_length_buckets,
            shuffle=False,
            drop_last=args.dataloader_drop_last,
        )
    if strategy != "group_by_length":
        return SequentialSampler(dataset)
    generator = torch.Generator().manual_seed(args.seed if args.data_seed is None else args.data_seed)
    return group_by_length(dataset, args.eval_batch_size, column, processing_class, generator)


def fitted_buckets(
    dataset: Any, args: TrainingArguments, processing_class: Any, remove_unused_columns: Callable[..., Any]
) -> LengthBuckets | None:
    """Returns the length buckets of a training dataset; None if its examples cannot be measured."""
    if not has_length(dataset) or len(dataset) == 0 or isinstance(dataset, IterableDataset):
        return None
    if is_table(dataset):
        dataset = remove_unused_columns(dataset, description="Training")
    try:
        lengths = lengths_of(dataset, args.length_column_name, processing_class)
    except MisconfigurationException:  # training raises it; an evaluation can do without
        return None
    return LengthBuckets.fitted(lengths, args.num_length_buckets)


def warn_of_order(dataset: Any, args: TrainingArguments) -> None:
    """Logs a warning if the examples of `dataset`, which has no length, should be ordered by length."""
    if dataset is not None and args.train_sampling_strategy in LENGTH_STRATEGIES:
        logger.warning(
            "train_sampling_strategy='%s' has no effect: the training dataset is a stream or has no length, so its "
            "examples come in their own order.",
            args.train_sampling_strategy,
        )
