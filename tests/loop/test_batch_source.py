"""Tests the random states of a run: in a checkpoint, in a snapshot, and how a resumed run restores them."""

import random
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from mps_trainer.checkpoints.rng import BEFORE_EPOCH, BEFORE_WAITING, rng_state, set_rng
from mps_trainer.compat import Compat
from mps_trainer.distributed import Processes
from mps_trainer.loop.batch_source import BatchSource
from tests.checkpoints.test_rng import generators_as_before  # noqa: F401


def noisy(rows):
    return [row + random.random() for row in rows]


def loader(**settings):
    return DataLoader(range(12), batch_size=2, collate_fn=noisy, **settings)


def source_of(data, folder=None, saved=None) -> BatchSource:
    source = BatchSource(SimpleNamespace(_mt_processes=Processes(), _mt_compat=Compat()), data)
    if saved is not None:
        torch.save(saved, folder / "rng_state.pth")
        source.load(str(folder))
    return source


def test_epoch_whose_first_batch_failed_has_drawn_nothing():
    source = source_of(loader())
    source.restore_epoch_start()  # nothing was begun
    random.seed(4)
    source.start_epoch(0, 0)
    expected = random.random()
    source.restore_epoch_start()
    assert random.random() == expected


def test_states_of_loading_serve_their_own_epoch_alone(tmp_path):
    random.seed(4)
    kept = rng_state()
    random.seed(9)
    source = source_of(loader(), tmp_path, {**rng_state(), BEFORE_EPOCH: kept, BEFORE_WAITING: None})
    expected = random.random()
    list(source.start_epoch(1, 0))  # from its start: another epoch
    source.restore_epoch_start()
    assert random.random() == expected


def test_draws_ahead_advance_what_is_restored_later(tmp_path):
    random.seed(3)
    saved = rng_state()
    first, second = random.random(), random.random()
    source = source_of(loader(), tmp_path, saved)
    with source.drawing_ahead():
        assert random.random() == first
    random.seed(8)
    source.restore_rng()
    assert random.random() == second
    with source.drawing_ahead():  # nothing is pending any more: the generators go on
        third = random.random()
    set_rng(saved)
    assert [random.random() for _ in range(3)][2] == third


@pytest.mark.parametrize(
    ("workers", "saved", "is_told"),
    [
        (1, {BEFORE_EPOCH: rng_state(), BEFORE_WAITING: None}, True),
        (0, {BEFORE_EPOCH: rng_state()}, False),
        (1, {}, False),
    ],
)
def test_loading_batches_again_for_workers_is_logged(tmp_path, caplog, workers, saved, is_told):
    caplog.set_level("INFO", logger="mps_trainer.loop.batch_source")
    source = source_of(loader(num_workers=workers), tmp_path, {**rng_state(), **saved})
    source.start_epoch(0, 3)
    told = "Loading the first 3 batches of the epoch again to restore the random state of the workers."
    assert caplog.messages == ([told] if is_told else [])
