"""Orders of an epoch: a function of seed and epoch, and what is left of one in its middle."""

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from mps_trainer.data.order import LaterBatches, SeededOrder, SeededRandomSampler, tell_epoch


def test_order_of_an_epoch_depends_on_seed_and_epoch_alone():
    order = SeededRandomSampler(RandomSampler(range(10)), seed=3)
    first = list(order)
    assert sorted(first) == list(range(10))
    assert list(order) != first  # the next epoch
    order.set_epoch(0)
    torch.manual_seed(1)
    assert list(order) == first
    assert list(SeededRandomSampler(RandomSampler(range(10)), seed=4)) != first


def test_order_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    list(SeededRandomSampler(RandomSampler(range(10)), seed=3))
    assert torch.rand(1) == expected


def test_order_draws_as_many_as_its_sampler_and_as_it_does():
    order = SeededRandomSampler(RandomSampler(range(4), replacement=True, num_samples=9), seed=3)
    assert len(order) == len(list(order)) == 9


@pytest.mark.parametrize("skip", [0, 1, 3, 4])
def test_later_batches_are_those_after_the_first(skip):
    batches = BatchSampler(SequentialSampler(range(7)), 2, False)
    reached = []
    later = LaterBatches(batches, skip, lambda: reached.append(True))
    assert list(later) == [[0, 1], [2, 3], [4, 5], [6]][skip:]
    assert len(later) == 4 - skip
    assert len(reached) == (skip < 4)


def test_epoch_reaches_the_sampler_behind_later_batches():
    order = SeededRandomSampler(RandomSampler(range(6)), seed=3)
    tell_epoch(2, LaterBatches(BatchSampler(order, 2, False), 1), object(), None)
    assert order.epoch == 2


def drawn(seed: int, count: int = 10) -> list[int]:
    """The order of torch's own sampler with a generator of this seed."""
    return list(RandomSampler(range(count), generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("kind", [SeededRandomSampler, SeededOrder])
def test_each_epoch_is_torchs_draw_after_seed_and_epoch(kind):
    order = kind(RandomSampler(range(10)), seed=3)
    assert [list(order) for _ in range(3)] == [drawn(3), drawn(4), drawn(5)]
    assert order.epoch == 3
    order.set_epoch(1)
    assert list(order) == drawn(4)
    order.set_epoch(2)
    order.seed = 7
    assert list(order) == drawn(9)
    assert len(order) == 10


def test_another_epochs_order_is_told_within_an_epoch():
    order = SeededRandomSampler(RandomSampler(range(10)), seed=3)
    passing = iter(order)
    begun = [next(passing) for _ in range(4)]
    assert list(order.order_of(2)) == drawn(5)
    assert begun + list(passing) == drawn(3)
    assert order.epoch == 1


def test_a_generator_of_the_users_own_is_seeded_anew():
    generator = torch.Generator().manual_seed(99)
    assert list(SeededRandomSampler(RandomSampler(range(10), generator=generator), seed=3)) == drawn(3)


def test_no_batches_are_left_after_more_than_there_are():
    assert len(LaterBatches(BatchSampler(SequentialSampler(range(7)), 2, False), 9)) == 0


def test_the_epoch_is_told_to_each_that_takes_it():
    orders = [SeededRandomSampler(RandomSampler(range(6)), seed=3), SeededOrder(RandomSampler(range(6)), seed=3)]
    tell_epoch(4, *orders)
    assert [order.epoch for order in orders] == [4, 4]
