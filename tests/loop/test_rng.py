"""Tests the random states of a run: in a checkpoint, in a snapshot, and how a resumed run restores them."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader

from mps_trainer.checkpoints.rng import BEFORE_EPOCH, BEFORE_WAITING, ORDER_SEED, restore_rng, rng_state, set_rng
from mps_trainer.data.loader import prepare_loader
from mps_trainer.data.order import SeededSampler
from mps_trainer.distributed import Processes
from mps_trainer.loop.rng import RunRng
from mps_trainer.utils.overrides import Overrides


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


class FakeTrainer:
    """Overrides the method that restores the generators from a checkpoint; counts its calls."""

    def __init__(self) -> None:
        self._mt_processes = Processes()
        self._mt_overrides = Overrides(["_load_rng_state"])
        self.restored = 0

    def _load_rng_state(self, checkpoint: str | None) -> None:
        assert checkpoint is not None
        restore_rng(checkpoint)
        self.restored += 1


def run_rng(data, folder=None, saved=None) -> RunRng:
    """Returns the random numbers of a run over `data`, resumed from `saved` if that is given."""
    rng = RunRng(FakeTrainer(), data)
    if saved is not None:
        torch.save(saved, folder / "rng_state.pth")
        rng.resume(str(folder))
    return rng


def seeded(seed: int):
    data = loader(shuffle=True)
    return DataLoader(range(12), batch_size=2, collate_fn=noisy, sampler=SeededSampler(data.sampler, seed))


@pytest.mark.parametrize("prefetches", [False, True])
def test_resumed_epoch_draws_same_order_and_numbers(tmp_path, prefetches):
    def data():
        return prepare_loader(loader(shuffle=True), seedable=False) if prefetches else loader(shuffle=True)

    first = run_rng(data())
    batches = first.start_epoch(0, 0)
    for _ in range(2):
        first.record_before_batches(True)
        next(batches)
    saved = first.state_dict()
    expected = list(batches), random.random()

    random.seed(5)
    torch.manual_seed(5)
    again = run_rng(data(), tmp_path, saved)
    batches = again.start_epoch(0, 2)
    assert (list(batches), random.random()) == expected
    assert again._trainer.restored == 1


def test_state_just_resumed_is_saved_again(tmp_path):
    first = run_rng(seeded(3))
    list(first.start_epoch(0, 0))
    saved = {**first.state_dict(), BEFORE_WAITING: None}
    again = run_rng(seeded(8), tmp_path, saved).state_dict()
    assert {name: again[name] for name in (ORDER_SEED, BEFORE_WAITING)} == {ORDER_SEED: 3, BEFORE_WAITING: None}
    assert again[BEFORE_EPOCH]["python"] == saved[BEFORE_EPOCH]["python"]


def test_checkpoint_of_transformers_stays_without_states_of_loading(tmp_path):
    again = run_rng(seeded(8), tmp_path, rng_state())
    assert again.state_dict().keys() == rng_state().keys()
    assert again.loader.sampler.seed == 8


def test_seed_of_the_order_is_the_checkpoints(tmp_path):
    assert run_rng(seeded(3)).state_dict()[ORDER_SEED] == 3
    assert run_rng(seeded(3), tmp_path, {**rng_state(), ORDER_SEED: 11}).loader.sampler.seed == 11
    without = run_rng(loader(), tmp_path, {**rng_state(), ORDER_SEED: 11})
    list(without.start_epoch(0, 0))
    assert ORDER_SEED not in without.state_dict()


def test_epoch_whose_first_batch_failed_has_drawn_nothing():
    rng = run_rng(loader())
    rng.restore_epoch_start()  # nothing was begun
    random.seed(4)
    rng.start_epoch(0, 0)
    expected = random.random()
    rng.restore_epoch_start()
    assert random.random() == expected


def test_states_of_loading_serve_their_own_epoch_alone(tmp_path):
    random.seed(4)
    kept = rng_state()
    random.seed(9)
    rng = run_rng(loader(), tmp_path, {**rng_state(), BEFORE_EPOCH: kept, BEFORE_WAITING: None})
    expected = random.random()
    list(rng.start_epoch(1, 0))  # from its start: another epoch
    rng.restore_epoch_start()
    assert random.random() == expected


def test_draws_ahead_advance_what_is_restored_later(tmp_path):
    random.seed(3)
    saved = rng_state()
    first, second = random.random(), random.random()
    rng = run_rng(loader(), tmp_path, saved)
    with rng.drawing_ahead():
        assert random.random() == first
    random.seed(8)
    rng.restore()
    assert random.random() == second
    assert rng._trainer.restored == 0
    with rng.drawing_ahead():  # nothing is pending any more: the generators go on
        third = random.random()
    set_rng(saved)
    assert [random.random() for _ in range(3)][2] == third


def test_snapshot_with_loading_starts_the_pass_again():
    rng = run_rng(prepare_loader(loader(shuffle=True), seedable=False))
    before = rng.snapshot(with_loading=True)
    expected = list(rng.start_epoch(0, 0))
    rng.load_snapshot(before, with_loading=True)
    assert list(rng.start_epoch(0, 0)) == expected


@pytest.mark.parametrize(
    ("workers", "saved", "is_told"),
    [
        (1, {BEFORE_EPOCH: rng_state(), BEFORE_WAITING: None}, True),
        (0, {BEFORE_EPOCH: rng_state()}, False),
        (1, {}, False),
    ],
)
def test_loading_batches_again_for_workers_is_logged(tmp_path, caplog, workers, saved, is_told):
    caplog.set_level("INFO", logger="mps_trainer.loop.rng")
    rng = run_rng(loader(num_workers=workers), tmp_path, {**rng_state(), **saved})
    rng.start_epoch(0, 3)
    told = "Loading the first 3 batches of the epoch again to restore the random state of the workers."
    assert caplog.messages == ([told] if is_told else [])
