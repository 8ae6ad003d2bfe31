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


def test_a_run_that_ends_within_an_epoch_leaves_no_worker(make_trainer, no_collector):
    before = set(multiprocessing.active_children())
    trainer = make_trainer(dataloader_num_workers=1, per_device_train_batch_size=4, max_steps=2)
    trainer.train()
    assert set(multiprocessing.active_children()) <= before
