"""The DataLoaders that the arguments describe, before they are prepared for epochs."""

from __future__ import annotations

import collections
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler
from transformers import BatchEncoding
from transformers.trainer_utils import RemoveColumnsCollator, has_length, seed_worker

from ..errors import MisconfigurationException
from .buckets import BucketBatchSampler, LengthBuckets
from .padding import PadToBucket
from .samplers import warn_of_order

if TYPE_CHECKING:
    from ..training_args import TrainingArguments

logger = logging.getLogger(__name__)


def make_dataloader(
    dataset: Any,
    collator: Callable,
    args: TrainingArguments,
    batch_size: int,
    sampler_fn: Callable | None = None,
    is_training: bool = False,
    processing_class: Any = None,
) -> DataLoader:
    """Returns the loader of `dataset`, from which unused columns were removed.

    Args:
        sampler_fn: `dataset -> sampler`, or without an argument, as subclasses for transformers 4 have it; not called
            for a stream.
        is_training: workers get seeds, which transformers gives them for training only.
        processing_class: defines the padding for length buckets.

    Raises:
        MisconfigurationException: for a dictionary of datasets or columns, a DataFrame, or data without rows.
    """
    _check_has_rows(dataset, f"The {'training' if is_training else 'evaluation'} data")
    settings = {"batch_size": batch_size, "collate_fn": collator, **loading_settings(args)}
    if isinstance(dataset, IterableDataset):
        if is_training:
            warn_of_order(dataset, args)
        return DataLoader(dataset, **settings)
    sampler: Sampler | None = None
    if sampler_fn is not None:
        sampler = sampler_fn(dataset) if inspect.signature(sampler_fn).parameters else sampler_fn()
    if not hasattr(dataset, "__getitem__") or (sampler is None and not has_length(dataset)):
        raise MisconfigurationException(
            f"The {'training' if is_training else 'evaluation'} data is of type {type(dataset).__name__}, and the "
            "Trainer needs rows that have numbers, such as a list or a class with __getitem__ and __len__, or a "
            "torch.utils.data.IterableDataset. list(...) makes a list of a generator."
        )
    if isinstance(sampler, BucketBatchSampler) or type(sampler).__name__ == "BatchRebalanceSampler":
        del settings["batch_size"]
        settings["batch_sampler"] = sampler
    else:
        settings.update(sampler=sampler, drop_last=args.dataloader_drop_last)
    if isinstance(sampler, BucketBatchSampler):
        settings["collate_fn"] = padding_collator(collator, sampler.buckets, processing_class, args.label_names)
    if is_training:
        settings["worker_init_fn"] = functools.partial(
            seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index
        )
    return DataLoader(dataset, **settings)


def _check_has_rows(dataset: Any, what: str) -> None:
    """Raises MisconfigurationException if the rows of `dataset` have names instead of numbers."""
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping) and not _has_first_row(dataset):
        names = list(dataset)
        if dataset and all(isinstance(column, (list, np.ndarray, torch.Tensor)) for column in dataset.values()):
            raise MisconfigurationException(
                f"{what} is a {kind} with the columns {', '.join(map(str, names))}, and the Trainer needs rows. Make "
                "them with datasets.Dataset.from_dict(...)."
            )
        raise MisconfigurationException(
            f"{what} is a {kind} with the splits {', '.join(map(str, names))}, and the Trainer needs one of them. "
            f"Give it one by name, for example dataset[{names[0] if names else 'train'!r}]."
        )
    library = type(dataset).__module__.partition(".")[0]
    if library in ("pandas", "polars") and kind == "DataFrame":
        raise MisconfigurationException(
            f"{what} is a {library} DataFrame, whose rows have no numbers for the Trainer. Make a dataset of it with "
            f"datasets.Dataset.from_{library}(frame)."
        )


def _has_first_row(dataset: Mapping[Any, Any]) -> bool:
    """Returns True for a dictionary of rows by number, and for a dataset whose class is one of dictionaries."""
    if isinstance(dataset, (BatchEncoding, collections.defaultdict)):  # these may answer to 0 without having rows
        return 0 in dataset
    try:
        dataset[0]
    except (KeyError, TypeError):
        return False
    return True


def loading_settings(args: TrainingArguments) -> dict[str, Any]:
    """Returns the settings of a DataLoader for workers, their start method and pinned memory."""
    workers = args.dataloader_num_workers
    return {
        "num_workers": workers,
        "pin_memory": args.dataloader_pin_memory and args.device.type == "cuda",
        "persistent_workers": args.dataloader_persistent_workers,
        # None is Python's own, which is spawn on a Mac: a fork of a process that has used Metal can abort there.
        "multiprocessing_context": args.dataloader_multiprocessing_context if workers else None,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "in_order": args.dataloader_in_order,
    }


def default_collator(processing_class: Any) -> Callable:
    """Returns the collator that pads with `processing_class` if that can pad batches, else transformers' default."""
    from transformers import PreTrainedTokenizerBase, SequenceFeatureExtractor
    from transformers.data.data_collator import DataCollatorWithPadding, default_data_collator

    # image processors have a pad() as well, which is not for batches
    pads = isinstance(processing_class, (PreTrainedTokenizerBase, SequenceFeatureExtractor))
    return DataCollatorWithPadding(processing_class) if pads else default_data_collator


def padding_collator(
    collator: Callable, buckets: LengthBuckets, processing_class: Any, label_names: list[str] | None
) -> Callable:
    """Returns `collator` with batches padded to the lengths of `buckets`."""
    if isinstance(collator, RemoveColumnsCollator):  # it passes the examples to the collator that pads
        collator.data_collator = padding_collator(collator.data_collator, buckets, processing_class, label_names)
        return collator
    if isinstance(collator, PadToBucket):
        return collator
    return PadToBucket(collator, buckets, processing_class, label_names or ())


def eval_dataset_named(given: Any, own: Any) -> tuple[str, Any]:
    """Returns the key of an evaluation's loader, and the dataset: `given`, `own[given]` if it is a name, or `own`.

    Raises:
        MisconfigurationException: if there is none.
    """
    if given is None and own is None:
        raise MisconfigurationException("There is nothing to evaluate on: give the Trainer an eval_dataset.")
    if not isinstance(given, str):
        return "eval", own if given is None else given
    if not isinstance(own, dict) or given not in own:
        has = f"those named {', '.join(map(str, own))}" if isinstance(own, dict) else "no datasets with names"
        raise MisconfigurationException(
            f"There is no evaluation dataset {given!r}: the Trainer has {has}. Name one of eval_dataset, a "
            "dictionary, or give the dataset itself."
        )
    return given, own[given]


def make_persistent(loader: Any, collator: Any, batch_size: int, seed: int) -> None:
    """Prepares the loader of an evaluation for workers that later evaluations use again.

    Their seeds do not come from torch's global generator: a resumed run would have to know which evaluations drew one.

    Args:
        collator: the Trainer's, which may be wrapped in the loader.
    """
    loader.made_with = collator, batch_size
    loader.generator = torch.Generator(torch.get_default_device()).manual_seed(seed)


def kept_or_made(
    loader: Any, dataset: Any, collator: Any, batch_size: int, make: Callable[[], Any], pass_number: int
) -> Any:
    """Returns an evaluation's persistent `loader` if dataset, collator and batch size are the same, else a new one.

    Args:
        pass_number: seeds the next pass of the workers, whatever evaluations came before.
    """
    with_collator, size = getattr(loader, "made_with", (None, None))
    is_of_dataset = getattr(loader, "made_for", None) is dataset
    if not is_of_dataset or with_collator is not collator or size != batch_size:
        loader = make()
    loader.pass_number, loader.iteration = pass_number, 0
    return loader


def num_tokens(train_dl: DataLoader, max_steps: int | None = None) -> int:
    """Returns the tokens in all batches' `input_ids`; with `max_steps`, the tokens of the first batch times that."""
    tokens = 0
    for batch in train_dl:
        if "input_ids" not in batch:
            logger.warning("Tokens cannot be counted: the batches have no input_ids.")
            return tokens
        if max_steps is not None:
            return batch["input_ids"].numel() * max_steps
        tokens += batch["input_ids"].numel()
    return tokens
