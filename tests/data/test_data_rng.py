"""Tests the random state of data loading in a checkpoint, and how a run restores it."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader

from mps_trainer.checkpoints.rng import rng_state, set_rng
from mps_trainer.data.data_rng import BEFORE_EPOCH, BEFORE_WAITING, ORDER_SEED, DataRngState
from mps_trainer.data.order import SeededSampler


@pytest.fixture(autouse=True)
def generators_as_before():
    before = rng_state()
    yield
    set_rng(before)


def noisy(rows):
    """A collator that draws."""
    return [row + random.random() for row in rows]


def loader(**settings):
    return DataLoader(range(12), batch_size=2, collate_fn=noisy, **settings)


def never():
    raise AssertionError("the checkpoint does not say how it loaded")


def seeded(seed: int):
    data = loader(shuffle=True)
    return DataLoader(range(12), batch_size=2, collate_fn=noisy, sampler=SeededSampler(data.sampler, seed))


def test_a_resumed_epoch_draws_the_same_order_and_numbers():
    state = DataRngState(loader(shuffle=True))
    batches = state.begin(0, 0, lambda: None)
    state.watch(True)
    for _ in range(2):
        next(batches)
    saved, generators = state.state_dict(), rng_state()
    expected = list(batches)

    random.seed(5)
    torch.manual_seed(5)
    again = DataRngState(loader(shuffle=True))
    again.load_state_dict(saved)
    assert list(again.begin(0, 2, lambda: set_rng(generators))) == expected


def test_a_run_that_has_only_just_gone_on_keeps_what_it_has_read():
    state = DataRngState(seeded(3))
    list(state.begin(0, 0, lambda: None))
    saved = {**state.state_dict(), BEFORE_WAITING: None}
    again = DataRngState(seeded(8))
    again.load_state_dict({**saved, "python": "of a generator"})
    assert again.state_dict() == saved
    assert set(saved) == {BEFORE_EPOCH, ORDER_SEED, BEFORE_WAITING}


def test_the_seed_of_the_order_is_the_checkpoints():
    state = DataRngState(seeded(3))
    assert state.state_dict()[ORDER_SEED] == 3
    for saved in (None, {}, {"python": "of a generator"}):  # of transformers
        state.load_state_dict(saved)
        assert state.loader.sampler.seed == 3
    state.load_state_dict({ORDER_SEED: 11})
    assert state.loader.sampler.seed == 11
    without = DataRngState(loader())
    assert ORDER_SEED not in without.state_dict()
    without.load_state_dict({ORDER_SEED: 11})


def test_an_epoch_whose_first_batch_could_not_be_loaded_has_drawn_nothing():
    state = DataRngState(loader())
    state.restore_epoch_start()  # nothing was begun
    random.seed(4)
    state.begin(0, 0, lambda: None)
    expected = random.random()
    state.restore_epoch_start()
    assert random.random() == expected


def test_what_was_kept_counts_for_the_epoch_it_is_of_alone():
    state = DataRngState(loader())
    random.seed(4)
    kept = rng_state()
    state.load_state_dict({BEFORE_EPOCH: kept, BEFORE_WAITING: None})
    random.seed(9)
    expected = random.random()
    random.seed(9)
    list(state.begin(1, 0, never))  # from its start: another epoch
    state.restore_epoch_start()
    assert random.random() == expected


@pytest.mark.parametrize(
    ("workers", "saved", "is_told"),
    [
        (1, {BEFORE_EPOCH: rng_state(), BEFORE_WAITING: None}, True),
        (0, {BEFORE_EPOCH: rng_state()}, False),
        (1, {}, False),
    ],
)
def test_batches_that_are_loaded_again_for_workers_are_told(caplog, workers, saved, is_told):
    caplog.set_level("INFO", logger="mps_trainer.data.data_rng")
    state = DataRngState(loader(num_workers=workers))
    state.load_state_dict(saved)
    state.begin(0, 3, lambda: None)
    told = "Loading the first 3 batches of the epoch again to restore the random state of the workers."
    assert caplog.messages == ([told] if is_told else [])
