"""Loaders prepared for epochs, one batch ahead, and begun in the middle."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from mps_trainer.data.loader import (
    EpochLoader,
    epoch_batches,
    length_of,
    num_examples,
    order_of,
    prepare_loader,
)


class Counted(torch.utils.data.Dataset):
    """Numbers, and which of them have been loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> int:
        self.loaded.append(i)
        return i


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class Own(DataLoader):
    """A loader that makes something of its own of the batches."""

    def __iter__(self):
        return (batch + 100 for batch in super().__iter__())


def lists(batches) -> list:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def test_batch_after_the_one_given_is_loaded_and_no_more():
    data = Counted()
    batches = iter(prepare_loader(DataLoader(data, 2)))
    assert data.loaded == []
    next(batches)
    assert data.loaded == [0, 1, 2, 3]


def test_pass_says_when_its_last_batch_was_given():
    loader = prepare_loader(DataLoader(Counted(), 4))
    ends = []
    for _ in loader:
        ends.append(loader.end_of_dataloader)
    assert ends == [False, False, True]
    assert loader.iteration == 1


def test_prepared_loader_keeps_what_it_was_made_with():
    loader = prepare_loader(
        DataLoader(Counted(), 3, sampler=RandomSampler(Counted()), drop_last=True, collate_fn=list)
    )
    assert isinstance(loader, EpochLoader)
    assert (loader.batch_size, loader.drop_last, loader.collate_fn, len(loader)) == (3, True, list, 3)
    assert prepare_loader(loader) is loader
    assert prepare_loader([1, 2]) == [1, 2]


def test_sampler_stays_random_where_it_shall_not_be_seeded():
    assert order_of(prepare_loader(DataLoader(Counted(), 3, shuffle=True), seedable=False)) is None
    assert order_of(prepare_loader(DataLoader(Counted(), 3, shuffle=True), data_seed=5)).seed == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: prepare_loader(DataLoader(Counted(), 3, shuffle=True)),
        lambda: prepare_loader(DataLoader(Counted(), batch_sampler=BatchSampler(range(10), 3, False))),
        lambda: prepare_loader(DataLoader(Stream(), 3)),
        lambda: prepare_loader(DataLoader(Counted(), batch_size=None, sampler=range(10))),
        lambda: prepare_loader(DataLoader(Counted(), batch_size=None, sampler=BatchSampler(range(10), 3, False))),
        lambda: DataLoader(Counted(), 3),
        lambda: DataLoader(Stream(), 3),
        lambda: Own(Counted(), 3),
        lambda: [torch.ones(1), torch.zeros(1), torch.ones(2)],
    ],
)
def test_epoch_begun_in_the_middle_has_the_rest_of_its_batches(make):
    def run(skip):
        reached = []
        return lists(epoch_batches(make(), 1, skip, lambda: reached.append(True))), reached

    whole, _ = run(0)
    for skip in (1, 2):
        rest, reached = run(skip)
        assert rest == whole[skip:]
        assert reached == [True]


def test_batches_left_out_are_not_loaded():
    data = Counted()
    lists(epoch_batches(prepare_loader(DataLoader(data, 2)), 0, skip=3))
    assert data.loaded == [6, 7, 8, 9]


def test_state_is_that_from_before_the_batch_ahead_was_loaded():
    batches = iter(prepare_loader(DataLoader(Counted(), 4, collate_fn=lambda items: torch.rand(1))))
    batches.records = True
    next(batches)
    assert batches.draws
    state = batches.before_waiting["cpu"]
    waiting = next(batches)
    torch.set_rng_state(state)
    assert torch.rand(1) == waiting
    next(batches)
    assert batches.before_waiting is None  # nothing waits after the last


def test_length_and_examples_of_what_does_not_know_its_own():
    assert length_of(DataLoader(Stream(), 3)) is None
    assert length_of([1, 2]) == 2
    assert num_examples([1, 2], 8) == 16
    assert num_examples(DataLoader(Counted(), 3), 8) == 10


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_draws_like_torch(workers):
    plain = DataLoader(list(range(10)), batch_size=4, num_workers=workers)
    torch.manual_seed(0)
    expected = [batch.tolist() for batch in plain]
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert [batch.tolist() for batch in prepare_loader(plain)] == expected
    assert torch.equal(torch.rand(1), drawn)
