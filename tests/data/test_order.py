"""Tests the order of an epoch, its rest after a resume, and the share of it that each process gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from mps_trainer.data.epoch_loader import prepare_loader
from mps_trainer.data.faults import rows_of_batches
from mps_trainer.data.order import DistributedBatchSampler, ShareOfStream
from mps_trainer.distributed import Processes
from mps_trainer.training_args import TrainingArguments
from tests.conftest import Stream, refusal


def shares(count: int, size: int, batch_size: int, **settings):
    """Returns for each process its batches of the examples 0, 1, 2 ..., [] for a filler."""
    everybodys = []
    for rank in range(size):
        share = DistributedBatchSampler(BatchSampler(range(count), batch_size, False), rank, size, **settings)
        batches = list(share)
        assert len(share) == len(batches)
        everybodys.append([[] if i in share.filler_batches else batch for i, batch in enumerate(batches)])
    return everybodys


sizes = {"count": st.integers(1, 60), "size": st.integers(1, 5), "batch_size": st.integers(1, 6)}


@given(**sizes)
def test_an_update_of_all_processes_has_the_examples_of_one_process_with_larger_batches(count, size, batch_size):
    together = list(BatchSampler(range(count), batch_size * size, False))
    shared = list(zip(*shares(count, size, batch_size), strict=True))
    assert [sorted(example for batch in batches for example in batch) for batches in shared] == together
    assert all(len(batch) <= batch_size for batch in shared[-1])
    if count % (batch_size * size) <= batch_size * (size - 1):
        assert max(map(len, shared[-1])) - min(map(len, shared[-1])) <= 1


@given(**sizes)
def test_an_evaluation_has_the_batches_of_one_process_in_turn(count, size, batch_size):
    shared = zip(*shares(count, size, batch_size, even=False), strict=True)
    in_turn = [batch for batches in shared for batch in batches if batch]
    assert in_turn == list(BatchSampler(range(count), batch_size, False))


@given(**sizes)
def test_whole_batches_are_divided_evenly_and_the_end_of_an_epoch_can_be_left_out(count, size, batch_size):
    shared = list(zip(*shares(count, size, batch_size, whole=True), strict=True))
    joined = [[example for batch in batches for example in batch] for batches in shared]
    assert joined == list(BatchSampler(range(count), batch_size, False))
    assert all(max(map(len, batches)) - min(map(len, batches)) <= 1 for batches in shared)
    batches = shares(count, size, batch_size, drop_last=True)
    assert {len(each) for each in batches} == {-(-count // batch_size) // size}


class Sized(Stream):
    def __len__(self) -> int:
        return len(self.rows)


@given(**sizes, even=st.booleans(), drop_last=st.booleans())
def test_the_shares_of_a_stream_have_all_its_examples(count, size, batch_size, even, drop_last):
    settings = {"even": even, "drop_last": drop_last}
    streams = [ShareOfStream(Sized(range(count)), batch_size, rank, size, **settings) for rank in range(size)]
    everybodys = [list(stream) for stream in streams]
    assert [len(stream) for stream in streams] == list(map(len, everybodys))
    seen = [example for share in everybodys for example in share]
    kept = count - count % (batch_size * size) if drop_last else count
    assert set(seen) == set(range(kept))
    if even:
        assert len({-(-len(share) // batch_size) for share in everybodys}) == 1
    else:
        assert len(seen) == kept


def weighted(data):
    return WeightedRandomSampler([1.0] * len(data), len(data), replacement=False)


def of_two(loader, rank: int, **settings):
    return prepare_loader(loader, TrainingArguments(use_cpu=True, **settings), Processes(rank, 2))


@pytest.mark.parametrize("make", [RandomSampler, SubsetRandomSampler, weighted])
def test_processes_draw_one_order_and_name_the_rows_of_their_own_batches(make):
    data, seen = list(range(23)), []
    settings = {"accelerator_config": {"use_seedable_sampler": False}, "data_seed": 5}
    for rank in (0, 1):
        loader = of_two(DataLoader(data, batch_size=3, sampler=make(data)), rank, **settings)
        assert of_two(loader, rank) is loader
        assert loader.total_batch_size == 6
        batches = [batch.tolist() for batch in loader]
        assert [rows_of_batches(loader, 0, number) for number in range(len(batches))] == batches
        seen += [example for batch in batches for example in batch]
    assert sorted(seen) == data
    assert "batch_size=None" in refusal(of_two, DataLoader([[1, 2], [3, 4]], batch_size=None), 0)
