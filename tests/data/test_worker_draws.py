"""What is drawn in workers, from the beginning of an epoch and from its middle."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mps_trainer.data.loader import epoch_batches, prepare_loader


class Noisy(Dataset):
    """Each item is its index and three draws."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


def epoch(workers, skip=0, seed=7, **settings):
    torch.manual_seed(seed)
    settings = {"batch_size": 4, "shuffle": True, **settings}
    loader = prepare_loader(DataLoader(Noisy(), num_workers=workers, **settings), data_seed=1)
    return torch.stack(list(epoch_batches(loader, 0, skip)))


@pytest.mark.parametrize("skip", [1, 2, 5])
def test_an_epoch_begun_in_its_middle_draws_what_it_would_have_drawn(skip):
    assert torch.equal(epoch(2, skip), epoch(2)[skip:])


def test_the_draws_do_not_depend_on_how_many_workers_there_are():
    assert torch.equal(epoch(1), epoch(3))


def test_batches_and_epochs_draw_differently():
    first, other = epoch(2), epoch(2, seed=8)
    assert torch.equal(first[..., 0], other[..., 0])  # the order has a seed of its own
    draws = torch.cat([first[..., 1:].flatten(), other[..., 1:].flatten()])
    assert len(draws.unique()) == len(draws)


def test_single_items_are_seeded_as_well():
    whole = epoch(2, batch_size=None, shuffle=False)
    assert whole[:, 0].tolist() == list(range(24))
    assert torch.equal(epoch(2, 5, batch_size=None, shuffle=False), whole[5:])


def test_nothing_is_drawn_in_the_process_that_trains():
    loader = prepare_loader(DataLoader(Noisy(), batch_size=4, num_workers=1, shuffle=True), data_seed=1)
    plain = DataLoader(Noisy(), batch_size=4, num_workers=1)
    states = []
    for one in (loader, plain):
        torch.manual_seed(7)
        list(one)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
