"""Tests the order of the examples for each train_sampling_strategy, the lengths that it needs, and the loaders."""

import datasets
import pytest
import torch
from torch.utils.data import SequentialSampler

from mps_trainer.data.buckets import BucketBatchSampler, LengthBuckets
from mps_trainer.data.dataloaders import loading_settings, make_dataloader
from mps_trainer.data.order import SeededSampler
from mps_trainer.data.samplers import eval_sampler, lengths_in_column, lengths_of, train_sampler
from mps_trainer.distributed import Processes
from tests.conftest import examples, refusal

ROWS = [{"input_ids": [1] * (1 + i * 7 % 30)} for i in range(40)]
SEVERAL = Processes(1, 2)


def order(args, dataset=ROWS, batch_size=8, processes=SEVERAL):
    return train_sampler(dataset, args, batch_size, None, processes)


def test_an_empty_dataset_and_a_stream_are_not_shuffled_and_groups_of_several_processes_follow_a_seed(make_args):
    assert type(order(make_args(), [])) is SequentialSampler
    assert order(make_args(), iter(ROWS)) is None
    args = make_args(train_sampling_strategy="group_by_length", data_seed=5)
    assert isinstance(order(args), SeededSampler)
    assert not isinstance(order(args, processes=Processes()), SeededSampler)
    rebalanced = make_args(train_sampling_strategy="batch_rebalance")
    assert "works only in one process, and there are 2" in refusal(order, rebalanced)


@pytest.mark.parametrize(("batch_size", "size", "chunks"), [(8, 8, 2), (7, 14, 1), (1, 2, 1)])
def test_buckets_make_batches_for_all_processes_of_the_loaders_size(make_args, batch_size, size, chunks):
    args = make_args(train_sampling_strategy="bucket_by_length", num_length_buckets=2, gradient_accumulation_steps=1)
    sampler = order(args, batch_size=batch_size)
    assert isinstance(sampler, BucketBatchSampler)
    assert (sampler.batch_size, sampler.chunks, len(sampler.buckets.lengths)) == (size, chunks, 2)


def test_longer_examples_of_an_evaluation_are_not_padded_beyond_its_longest(make_args):
    """A model may have as many positions and no more, such as the 77 of CLIP."""
    args = make_args(train_sampling_strategy="bucket_by_length", torch_compile=True)
    rows = [{"input_ids": [1] * length} for length in (12, 13, 75, 77)]
    assert eval_sampler(rows, args, None, lambda: LengthBuckets((12, 60))).buckets.lengths == (12, 60, 64, 72, 77)


TABLE = [{"input_ids": [1] * (i * 7 % 11), "other": i} for i in range(40)]
LENGTHS = [len(row["input_ids"]) for row in TABLE]


@pytest.mark.parametrize("form", [None, "torch", "numpy", "arrow"])
def test_a_column_of_lists_is_measured_in_any_format(form):
    table = datasets.Dataset.from_list(TABLE).with_format(form)
    assert lengths_in_column(table, "input_ids") == LENGTHS
    chosen = table.select([5, 3, 3, 9])
    assert lengths_in_column(chosen, "input_ids") == [LENGTHS[i] for i in (5, 3, 3, 9)]


def test_examples_of_no_column_of_lists_are_measured_one_by_one():
    class Reader:
        model_input_names = ("text",)

    table = datasets.Dataset.from_list(TABLE)
    assert lengths_of(table, "length", None) == lengths_of(TABLE, "length", None) == LENGTHS
    table.set_transform(lambda rows: {"input_ids": [[1, 2, 3] for _ in rows["input_ids"]]})
    assert lengths_in_column(table, "input_ids") is None
    assert lengths_of(table, "length", None) == [3] * 40
    assert lengths_of(datasets.Dataset.from_dict({"text": ["a", "bcd"]}), "length", Reader()) == [1, 3]


@pytest.mark.parametrize(("workers", "given", "expected"), [(0, "fork", None), (2, None, None), (2, "fork", "fork")])
def test_workers_on_mps_start_as_python_starts_them_unless_told_otherwise(make_args, workers, given, expected):
    args = make_args(dataloader_num_workers=workers, dataloader_multiprocessing_context=given)
    args.__dict__["device"] = torch.device("mps")
    settings = loading_settings(args)
    assert settings["multiprocessing_context"] == expected
    assert not settings["pin_memory"]


@pytest.mark.parametrize(("is_training", "drop_last"), [(True, True), (False, False)])
def test_workers_get_seeds_for_training_alone(make_args, is_training, drop_last):
    args = make_args(dataloader_drop_last=drop_last)
    loader = make_dataloader(examples(10), list, args, 4, is_training=is_training)
    assert (loader.worker_init_fn is not None) == is_training
    assert [len(batch) for batch in loader] == ([4, 4] if drop_last else [4, 4, 2])
