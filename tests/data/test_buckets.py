"""Length buckets are the cheapest there are, and every batch is of one of them."""

import re
from itertools import combinations

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from mps_trainer.data.buckets import BucketBatchSampler, LengthBuckets
from tests.conftest import refusal


def draw(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(4.0, 12.0, count).astype(int) + 3


def cost(buckets, lengths) -> int:
    return sum(min(bucket for bucket in buckets if bucket >= length) for length in lengths)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_multiples_of_eight_need_fewer_padded_tokens(count, seed):
    lengths = np.random.default_rng(seed).integers(1, 70, 40)
    longest = int(lengths.max())
    candidates = list(range(8, longest, 8))
    fitted = LengthBuckets.fitted(lengths, count).lengths
    others = [(*some, longest) for n in range(count) for some in combinations(candidates, n)]
    assert fitted in others
    assert cost(fitted, lengths) == min(cost(other, lengths) for other in others)


def test_a_length_is_padded_to_the_next_bucket_or_beyond_the_last_to_a_multiple_of_eight():
    buckets = LengthBuckets((16, 24, 31))
    lengths = {1: 16, 16: 16, 17: 24, 25: 31, 31: 31, 32: 32, 33: 40, 48: 48}
    assert {length: buckets.length_for(length) for length in lengths} == lengths
    assert str(buckets) == "16, 24, 31"
    assert LengthBuckets((31,), exact=True).length_for(7) == 7
    # no more buckets than the lengths need
    fitted = {(5, 6, 30, 31): (8, 31), (16, 16): (16,), (0,): (1,)}
    assert {lengths: LengthBuckets.fitted(list(lengths), 7).lengths for lengths in fitted} == fitted


@pytest.mark.parametrize(
    ("make", "said"),
    [
        *(
            (lambda lengths=lengths: LengthBuckets(lengths), "must be positive and strictly increasing")
            for lengths in [(), (0, 8), (8, 8)]
        ),
        (lambda: LengthBuckets.fitted([], 7), "at least one bucket and one example are needed"),
        (lambda: LengthBuckets.fitted([3], 0), "at least one bucket and one example are needed"),
        (lambda: BucketBatchSampler([3], 0), "are not accepted"),
        (lambda: BucketBatchSampler([3], 4, rank=1), "are not accepted"),
    ],
)
def test_impossible_sizes_are_refused(make, said):
    assert re.search(said, refusal(make))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 200])
def test_batches_are_as_many_and_as_full_as_those_of_an_ordinary_sampler(count, drop_last, shuffle):
    sampler = BucketBatchSampler(draw(count), 8, shuffle=shuffle, drop_last=drop_last)
    ordinary = [len(batch) for batch in BatchSampler(SequentialSampler(range(count)), 8, drop_last)]
    batches = list(sampler)
    assert [len(batch) for batch in batches] == ordinary
    assert len(sampler) == len(ordinary)
    visited = sorted(i for batch in batches for i in batch)
    assert len(set(visited)) == len(visited)
    assert drop_last or visited == list(range(count))


@pytest.mark.parametrize("shuffle", [True, False])
def test_no_more_examples_than_a_batch_are_padded_beyond_their_bucket(shuffle):
    sampler = BucketBatchSampler(draw(500), 16, shuffle=shuffle)
    own = sampler.buckets.lengths_for(sampler.lengths)
    beyond = [i for batch in sampler for i in batch if own[i] < own[batch].max()]
    for bucket in sampler.buckets.lengths:
        assert sum(own[i] == bucket for i in beyond) < 16
    assert len(set(own)) == 7


def test_an_epoch_is_a_function_of_seed_and_epoch():
    def make(seed=3):
        return BucketBatchSampler(draw(400), 8, seed=seed)

    sampler = make()
    first, second = list(sampler), list(sampler)
    together = [{frozenset(batch) for batch in epoch} for epoch in (first, second)]
    assert len(together[0] & together[1]) < 5  # examples change their company
    buckets = [sampler.buckets.length_for(sampler.lengths[batch].max()) for batch in first]
    assert buckets != sorted(buckets)  # and batches their order
    assert list(make(4)) == second  # seed + epoch
    again = make()
    before = torch.get_rng_state()
    again.set_epoch(1)
    assert list(again) == second
    assert torch.equal(torch.get_rng_state(), before)
    again.set_epoch(0)
    assert list(again) == first


def test_without_shuffling_batches_go_by_length_and_stay():
    sampler = BucketBatchSampler(draw(100), 8, shuffle=False)
    batches = list(sampler)
    full = [i for batch in batches[:-1] for i in batch]
    assert sampler.lengths[full].tolist() == sorted(sampler.lengths[full])
    assert list(sampler) == batches
    assert sampler.order().tolist() == [i for batch in batches for i in batch]
    assert sorted(BucketBatchSampler(draw(20), 8, shuffle=False, drop_last=True).order()) == list(range(16))
    sampler = BucketBatchSampler(draw(20), 8, drop_last=True)  # it leaves out any examples
    assert {i for _ in range(40) for i in set(range(20)) - {i for batch in sampler for i in batch}} == set(range(20))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("count", "replicas"), [(96, 2), (97, 2), (97, 4), (3, 4), (110, 3)])
def test_processes_share_batches_of_one_bucket(count, replicas, drop_last, shuffle):
    def make(rank):
        settings = {"shuffle": shuffle, "drop_last": drop_last, "num_replicas": replicas, "rank": rank}
        return BucketBatchSampler(draw(count), 8, **settings)

    shares = [list(make(rank)) for rank in range(replicas)]
    assert len({tuple(len(batch) for batch in share) for share in shares}) == 1
    theirs = DistributedSampler(range(count), replicas, 0, drop_last=drop_last)
    assert len(make(0)) == len(shares[0]) == len(list(BatchSampler(theirs, 8, drop_last)))
    one = BucketBatchSampler(draw(count), 8 * replicas, shuffle=shuffle, drop_last=drop_last)
    together = [set().union(*batches) for batches in zip(*shares, strict=True)]
    assert together == [set(batch) for batch in one]


def test_a_loader_takes_it_and_says_what_is_padded():
    sampler = BucketBatchSampler([3, 5, 12, 12], 2, num_buckets=2)
    assert str(sampler) == "batches of 2, padded to 8, 12 tokens; padding: 20% of tokens"  # 8 of 40
    loader = DataLoader(list("abcd"), batch_sampler=sampler)
    assert sorted(map(sorted, loader)) == [["a", "b"], ["c", "d"]]
