"""Groups examples of similar length: transformers' samplers, given the lengths of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Sampler

from ..errors import MisconfigurationException
from .buckets import BucketBatchSampler
from .columns import is_table

LENGTH_STRATEGIES = ("group_by_length", "batch_rebalance", "bucket_by_length")


def group_by_length(
    dataset: Any, batch_size: int, column: str, processing_class: Any, generator: torch.Generator | None = None
) -> Sampler[int]:
    """Returns random batches of `batch_size` examples of similar length.

    Args:
        column: of the dataset, with the lengths; where it has none, the model's first input is measured.
        generator: draws the order; torch's global one if None.

    Raises:
        MisconfigurationException: if there is no length and nothing to measure.
    """
    from transformers.trainer_pt_utils import LengthGroupedSampler

    return LengthGroupedSampler(batch_size, lengths=lengths_of(dataset, column, processing_class), generator=generator)


def rebalanced_batches(
    dataset: Any, batch_size: int, accumulation: int, column: str, processing_class: Any, drop_last: bool
) -> Sampler[list[int]]:
    """Returns batches of differing size and equal cost; an update's `accumulation` batches average `batch_size`.

    Raises:
        MisconfigurationException: for a release of transformers without them; or as in `group_by_length`.
    """
    try:
        from transformers.trainer_pt_utils import BatchRebalanceSampler
    except ImportError as error:
        raise MisconfigurationException(
            "train_sampling_strategy='batch_rebalance' needs transformers' BatchRebalanceSampler, and the installed "
            "release has none. Install a newer one, or use train_sampling_strategy='group_by_length'."
        ) from error
    return BatchRebalanceSampler(
        lengths=lengths_of(dataset, column, processing_class),
        effective_batch_size=batch_size * accumulation,
        dp_size=1,
        grad_accum=accumulation,
        rank=0,
        drop_last=drop_last,
    )


def is_batch_sampler(sampler: Any) -> bool:
    """Returns True if `sampler` makes the batches itself, so that no batch size applies."""
    return isinstance(sampler, BucketBatchSampler) or type(sampler).__name__ == "BatchRebalanceSampler"


def lengths_of(dataset: Any, column: str, processing_class: Any) -> list[int]:
    """Returns the length of each example: the dataset's `column`, or the length of the model's first input."""
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
    if not is_list or dataset.format["type"] == "custom":  # whose function may make the examples longer or shorter
        return None
    lengths: list[int] = []
    for batch in dataset.select_columns(name).with_format("arrow").iter(batch_size=10_000):
        lengths.extend(compute.list_value_length(batch[name]).to_pylist())
    return lengths
