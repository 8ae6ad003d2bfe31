"""Data loaders for training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

from ..training_args import TrainingArguments
from .columns import KeepColumns, without_unused_columns
from .order import EpochOrder


def make_loader(
    dataset: Any,
    args: TrainingArguments,
    *,
    collator: Callable,
    columns: list[str],
    model_name: str,
    batch_size: int,
    sampler: Sampler | None = None,
    drop_last: bool = False,
) -> DataLoader:
    """A loader of batches of `batch_size`, its columns cut down to `columns` if the arguments say so."""
    if args.remove_unused_columns:
        if hasattr(dataset, "remove_columns") and getattr(dataset, "column_names", None):
            dataset = without_unused_columns(dataset, columns, model_name)
        else:
            collator = KeepColumns(collator, columns)
    workers = args.dataloader_num_workers
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=None if isinstance(dataset, IterableDataset) else sampler,
        drop_last=drop_last,
        collate_fn=collator,
        num_workers=workers,
        pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
        persistent_workers=args.dataloader_persistent_workers,
        prefetch_factor=args.dataloader_prefetch_factor,
        multiprocessing_context=args.dataloader_multiprocessing_context if workers else None,
    )


def epoch_batches(loader: Any, epoch: int, skip: int = 0) -> Iterator[Any]:
    """The batches of an epoch in the order that belongs to it, without the first `skip`.

    Where the order comes from `EpochOrder`, the batches left out are not even loaded.
    """
    for part in (loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)
    if skip and isinstance(loader.sampler, EpochOrder) and loader.batch_size is not None:
        loader.sampler.start_at(skip * loader.batch_size)
        skip = 0
    batches = iter(loader)
    for _ in range(skip):
        next(batches, None)
    return batches


def length_of(loader: Any) -> int | None:
    """Batches in an epoch, or None for a stream that does not know."""
    try:
        return len(loader)
    except TypeError:
        return None


def num_examples(loader: Any, batch_size: int) -> int:
    """Examples that `loader` goes through, estimated from its batches where it has no dataset of known length."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return (length_of(loader) or 0) * batch_size
