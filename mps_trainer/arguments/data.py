"""From dataset to batches."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import SamplingStrategy
from .fields import option


@dataclass
class DataArguments:
    per_device_train_batch_size: int = option(8, "Examples in a training batch.", ge=1)
    per_device_eval_batch_size: int = option(8, "Examples in an evaluation batch.", ge=1)
    train_sampling_strategy: SamplingStrategy | str = option(
        "random",
        "Order of the training examples: shuffled each epoch, as they are in the dataset, or by length; "
        "bucket_by_length pads to few lengths, so that few shapes are compiled.",
    )
    num_length_buckets: int = option(
        7, "Lengths to pad to, at most, with train_sampling_strategy=bucket_by_length.", ge=1
    )
    dataloader_drop_last: bool = option(False, "Leave out the last batch of an epoch if it is not full.")
    dataloader_num_workers: int = option(0, "Processes that load data; 0 loads in the main process.", ge=0)
    dataloader_pin_memory: bool = option(
        True, "Page-locked host memory for faster copies. Only cuda has it; elsewhere it is left out by itself."
    )
    dataloader_persistent_workers: bool = option(False, "Keep the loading processes from epoch to epoch.")
    dataloader_prefetch_factor: int | None = option(
        None, "Batches that each loading process prepares ahead. [2]", ge=1
    )
    dataloader_multiprocessing_context: str | None = option(
        None, "How loading processes are started. [the platform's own]", choices=["fork", "spawn", "forkserver"]
    )
    remove_unused_columns: bool = option(True, "Drop columns that the model's forward() does not take.")
    label_names: list[str] | None = option(None, "Keys of the inputs that are labels. [what the model takes]")
    ignore_data_skip: bool = option(
        False, "On resume, begin the epoch anew instead of at the batch that comes next; not the same training."
    )
    dataloader_in_order: bool = option(
        True, "Take batches in the order of their indices, though a later one may be ready before."
    )
    length_column_name: str = option("length", "Column with the lengths of the examples, for strategies by length.")


def parts_of_batch(batch_size: int, accumulation: int) -> int:
    """Returns how many parts a training batch has with bucket_by_length; the examples of a part are of like length.

    Two, unless several batches make an update anyway, or a part would have fewer than 8 examples. An update whose
    examples all have one length follows what is peculiar to that length, and training in which every update does
    learns less, or at a high learning rate nothing: docs/data.md has what was measured.
    """
    return 2 if accumulation == 1 and batch_size >= 16 and batch_size % 2 == 0 else 1
