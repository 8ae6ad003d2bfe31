"""Tests the order of the examples for each train_sampling_strategy, and the lengths that it needs."""

import datasets
import pytest
from torch.utils.data import SequentialSampler

from mps_trainer import MisconfigurationException
from mps_trainer.data.buckets import BucketBatchSampler, LengthBuckets
from mps_trainer.data.order import SeededSampler
from mps_trainer.data.samplers import eval_sampler, fitted_buckets, lengths_in_column, lengths_of, train_sampler
from mps_trainer.distributed import Processes

ROWS = [{"input_ids": [1] * (1 + i * 7 % 30)} for i in range(40)]
SEVERAL = Processes(1, 2)


def order(args, dataset=ROWS, batch_size=8, processes=SEVERAL):
    return train_sampler(dataset, args, batch_size, None, processes)


def test_an_empty_dataset_and_one_without_length_are_not_shuffled(make_args):
    assert type(order(make_args(), [])) is SequentialSampler
    assert order(make_args(), iter(ROWS)) is None


def test_groups_of_several_processes_follow_a_seed_and_rebalanced_batches_are_refused(make_args):
    args = make_args(train_sampling_strategy="group_by_length", data_seed=5)
    assert isinstance(order(args), SeededSampler)
    assert not isinstance(order(args, processes=Processes()), SeededSampler)
    with pytest.raises(MisconfigurationException, match="works only in one process, and there are 2"):
        order(make_args(train_sampling_strategy="batch_rebalance"))


@pytest.mark.parametrize(("batch_size", "size", "chunks"), [(8, 8, 2), (7, 14, 1), (1, 2, 1)])
def test_buckets_make_batches_for_all_processes_of_the_loaders_size(make_args, batch_size, size, chunks):
    args = make_args(train_sampling_strategy="bucket_by_length", num_length_buckets=2, gradient_accumulation_steps=1)
    sampler = order(args, batch_size=batch_size)
    assert isinstance(sampler, BucketBatchSampler)
    assert (sampler.batch_size, sampler.chunks, len(sampler.buckets.lengths)) == (size, chunks, 2)


def test_evaluation_by_length_pads_to_the_lengths_of_training_where_shapes_are_compiled(make_args):
    args, buckets = make_args(train_sampling_strategy="bucket_by_length", torch_compile=True), LengthBuckets((16, 48))
    assert eval_sampler(ROWS, args, None, lambda: buckets).buckets is buckets


def test_buckets_are_fitted_to_what_can_be_measured(make_args):
    args = make_args(num_length_buckets=3)
    lengths = [len(row["input_ids"]) for row in ROWS]
    assert fitted_buckets(ROWS, args, None, None).lengths == LengthBuckets.fitted(lengths, 3).lengths
    assert [fitted_buckets(data, args, None, None) for data in (None, [], [{"x": 1}], iter(ROWS))] == [None] * 4


# Lengths

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
