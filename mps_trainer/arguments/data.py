"""Data loading."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import SamplingStrategy
from .fields import option


@dataclass
class DataArguments:
    """Data loading."""

    per_device_train_batch_size: int = option(8, "Number of examples in a training batch of one process.", ge=1)
    per_device_eval_batch_size: int = option(8, "Number of examples in an evaluation batch of one process.", ge=1)
    train_sampling_strategy: SamplingStrategy | str = option(
        "random",
        "Order of the training examples: shuffled each epoch, in dataset order, or grouped by length. "
        "bucket_by_length pads to a few fixed lengths, so mps compiles for few shapes.",
    )
    num_length_buckets: int = option(
        7, "Maximum number of padded lengths with train_sampling_strategy=bucket_by_length.", kw_only=True, ge=1
    )
    dataloader_drop_last: bool = option(False, "Drop the last batch of an epoch if it is incomplete.")
    dataloader_num_workers: int = option(0, "Number of workers that load data; 0 loads in the main process.", ge=0)
    dataloader_pin_memory: bool = option(
        True, "Use page-locked host memory for faster copies. It has an effect on cuda only."
    )
    dataloader_persistent_workers: bool = option(False, "Keep the workers alive between epochs.")
    dataloader_prefetch_factor: int | None = option(None, "Number of batches that each worker loads ahead. [2]", ge=1)
    dataloader_multiprocessing_context: str | None = option(
        None, "Start method of the workers. [the platform's own]", choices=["fork", "spawn", "forkserver"]
    )
    remove_unused_columns: bool = option(True, "Drop columns that are not arguments of the model's forward().")
    label_names: list[str] | None = option(None, "Keys of the inputs that are labels. [from the model's forward()]")
    ignore_data_skip: bool = option(
        False, "On resume, start the epoch from its first batch instead of skipping the batches seen; results differ."
    )
    dataloader_in_order: bool = option(
        True, "Return batches in the order of their indices, even if a later one is ready first."
    )
    length_column_name: str = option("length", "Column with the lengths of the examples, for sampling by length.")
