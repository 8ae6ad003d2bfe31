"""Each process gets its share of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from mps_trainer import MisconfigurationException
from mps_trainer.data.loader import prepare_loader
from mps_trainer.data.rows import rows_of_batches
from mps_trainer.data.shares import DistributedBatchSampler, ShareOfStream
from mps_trainer.distributed import Processes


def shares(count: int, size: int, batch_size: int, **settings):
    """Returns the examples, of 0, 1, 2 ..., of each of `size` processes, without padding batches."""
    everybodys = []
    for rank in range(size):
        share = DistributedBatchSampler(BatchSampler(range(count), batch_size, False), rank, size, **settings)
        batches = list(share)
        assert len(share) == len(batches)
        everybodys.append([[] if i in share.padding_batches else batch for i, batch in enumerate(batches)])
    return everybodys


sizes = {"count": st.integers(1, 60), "size": st.integers(1, 5), "batch_size": st.integers(1, 6)}


@given(**sizes)
def test_an_update_of_all_has_the_examples_that_one_process_with_larger_batches_has(count, size, batch_size):
    together = list(BatchSampler(range(count), batch_size * size, False))
    for batches in zip(*shares(count, size, batch_size), strict=True):
        assert sorted(example for batch in batches for example in batch) == together.pop(0)
    assert not together


@given(**sizes)
def test_the_end_is_shared_out_evenly(count, size, batch_size):
    last = [batches[-1] for batches in shares(count, size, batch_size)]
    if count % (batch_size * size) <= batch_size * (size - 1):
        assert max(map(len, last)) - min(map(len, last)) <= batch_size
    assert all(len(batch) <= batch_size for batch in last)


@given(**sizes)
def test_an_evaluation_has_the_batches_that_one_process_has_in_turn(count, size, batch_size):
    alone = list(BatchSampler(range(count), batch_size, False))
    in_turn = [
        batch for batches in zip(*shares(count, size, batch_size, even=False), strict=True) for batch in batches
    ]
    assert [batch for batch in in_turn if batch] == alone


@given(**sizes)
def test_a_batch_of_all_is_split(count, size, batch_size):
    whole = list(BatchSampler(range(count), batch_size, False))
    for batches in zip(*shares(count, size, batch_size, whole=True), strict=True):
        assert [example for batch in batches for example in batch] == whole.pop(0)
        assert max(map(len, batches)) - min(map(len, batches)) <= 1


@given(**sizes)
def test_what_does_not_fill_a_batch_of_all_can_be_left_out(count, size, batch_size):
    batches = shares(count, size, batch_size, drop_last=True)
    assert {len(each) for each in batches} == {-(-count // batch_size) // size}


class Stream(IterableDataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count


@given(**sizes, even=st.booleans(), drop_last=st.booleans())
def test_a_stream_is_shared_out_with_nothing_left_out_unless_it_is_asked_for(count, size, batch_size, even, drop_last):
    streams = [
        ShareOfStream(Stream(count), batch_size, rank, size, even=even, drop_last=drop_last) for rank in range(size)
    ]
    everybodys = [list(stream) for stream in streams]
    assert [len(stream) for stream in streams] == list(map(len, everybodys))
    seen = [example for share in everybodys for example in share]
    kept = count - count % (batch_size * size) if drop_last else count
    assert set(seen) == set(range(kept))
    if even:  # as many batches in each
        assert len({-(-len(share) // batch_size) for share in everybodys}) == 1
    else:
        assert len(seen) == kept


def of_two(loader, rank: int, **settings):
    return prepare_loader(loader, processes=Processes(rank, 2), **settings)


def test_both_processes_draw_one_order_whatever_their_generators_say():
    data = list(range(20))
    seen = []
    for rank in (0, 1):
        loader = of_two(DataLoader(data, batch_size=3, sampler=RandomSampler(data)), rank, seedable=False, data_seed=5)
        seen.append([example for batch in loader for example in batch.tolist()])
    assert sorted(seen[0] + seen[1]) == data


def test_the_rows_of_a_batch_are_those_of_this_process():
    data = list(range(23))
    for rank in (0, 1):
        loader = of_two(DataLoader(data, batch_size=3, sampler=RandomSampler(data)), rank, data_seed=5)
        batches = [batch.tolist() for batch in loader]
        for number, batch in enumerate(batches):
            assert rows_of_batches(loader, 0, number) == batch


def test_a_loader_is_shared_out_once():
    loader = of_two(DataLoader(range(8), batch_size=2), 1)
    assert of_two(loader, 1) is loader
    assert loader.total_batch_size == 4


def test_batches_that_the_dataset_makes_are_refused():
    with pytest.raises(MisconfigurationException, match="batch_size=None"):
        of_two(DataLoader([[1, 2], [3, 4]], batch_size=None), 0)
