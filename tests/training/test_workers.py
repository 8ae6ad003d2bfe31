"""Processes of the loader end with the training."""

import gc
import multiprocessing

import pytest


@pytest.fixture
def no_collector():
    """A cycle of references keeps workers alive until it is collected, which may come by chance in time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_run_that_ends_within_an_epoch_leaves_no_worker(make_trainer, no_collector, persistent):
    before = set(multiprocessing.active_children())
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": persistent}
    trainer = make_trainer(**workers, per_device_train_batch_size=4, max_steps=2)
    trainer.train()
    assert set(multiprocessing.active_children()) <= before
