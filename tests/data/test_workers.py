"""Tests that the draws of persistent workers depend on the pass, not on the passes before."""

import gc
import multiprocessing
import os
import random
import signal
import time
import weakref
from multiprocessing import resource_tracker

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from mps_trainer.data.epoch_loader import prepare_loader
from mps_trainer.data.workers import close_workers
from mps_trainer.distributed import Processes
from mps_trainer.guards import signals
from mps_trainer.training_args import TrainingArguments


class Draws(Dataset):
    """Each example has a number from each of three generators, the number of the worker, and the epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return (get_worker_info().id, self.epoch, *drawn())


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(2):
            yield (get_worker_info().id, 0, *drawn())


def drawn():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def loader_of(dataset, seed=7, processes=None, **settings):
    settings = {"num_workers": 2, "persistent_workers": True, "collate_fn": list, **settings}
    args = TrainingArguments(use_cpu=True, seed=seed)
    return prepare_loader(DataLoader(dataset, 2, **settings), args, processes or Processes())


def passes(loader, *epochs):
    try:
        found = []
        for epoch in epochs:
            loader.set_epoch(epoch)
            found.append([row for batch in loader for row in batch])
        return found
    finally:
        close_workers(loader)


@pytest.mark.parametrize("dataset", [Draws, Stream])
def test_a_pass_draws_the_same_without_those_before(dataset):
    first, second, third = passes(loader_of(dataset()), 0, 1, 2)
    assert len({row[2:] for row in first + second + third}) == 12
    assert passes(loader_of(dataset()), 2) == [third]
    assert passes(loader_of(dataset()), 1, 2) == [second, third]


def test_workers_and_processes_and_runs_draw_differently():
    rows = passes(loader_of(Draws()), 1)[0]
    assert [row[:2] for row in rows] == [(0, 1), (0, 1), (1, 1), (1, 1)]  # the dataset hears of the epoch
    other_run = passes(loader_of(Draws(), seed=8), 1)[0]
    other_rank = passes(loader_of(Draws(), processes=Processes(1, 2)), 1)[0]
    assert len({row[2:] for row in rows + other_run + other_rank}) == 4 + 4 + 2


def test_the_first_pass_draws_as_under_pytorch_and_later_ones_leave_torchs_generator_where_it_was():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    passes(loader_of(Draws()), 2)
    assert torch.equal(torch.get_rng_state(), before)
    (ours,) = passes(loader_of(Draws()), 0)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    theirs = DataLoader(Draws(), 2, num_workers=2, collate_fn=list)
    assert [row for batch in theirs for row in batch] == ours


def prepare(worker):
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    random.seed(worker)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_ignores_interrupts_and_is_still_prepared_as_its_user_asks(persistent):
    rows = passes(loader_of(Draws(), persistent_workers=persistent, worker_init_fn=prepare), 0)[0]
    assert [rows[0][2], rows[2][2]] == [random.Random(worker).random() for worker in (0, 1)]


def test_a_worker_that_a_signal_ends_does_not_disturb_what_the_main_process_does(monkeypatch):
    monkeypatch.setattr(signals, "GRACE", 1)  # a forked worker needs no more
    loader = loader_of(Draws(), num_workers=1)
    batches = iter(loader)
    next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGTERM)
    next(batches)  # it goes on for a while
    end = time.monotonic() + 60
    while worker.is_alive() and time.monotonic() < end:  # meanwhile a checkpoint may be saved
        time.sleep(0.1)
    assert worker.exitcode == 0
    close_workers(loader)


@pytest.mark.parametrize(("method", "blocked"), [("spawn", [False, True]), ("fork", [True])])
def test_signals_are_blocked_after_the_start_of_the_tracker_which_unblocks_them(monkeypatch, method, blocked):
    def start(*_):
        seen.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

    seen = []
    monkeypatch.setattr(resource_tracker, "ensure_running", start)
    monkeypatch.setattr(DataLoader, "__iter__", start)
    loader_of(Draws(), multiprocessing_context=method).iterate_once()
    assert seen == blocked


def test_workers_of_dropped_loader_end_without_garbage_collection():
    loader = loader_of(list(range(4)), num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 2
    iterator = weakref.ref(loader._iterator)
    gc.disable()
    del loader
    ended = iterator() is None
    gc.enable()
    assert ended


@pytest.mark.acceptance
def test_workers_that_are_spawned_draw_the_same_as_forked_ones():
    spawned = passes(loader_of(Draws(), multiprocessing_context="spawn"), 1)
    assert spawned == passes(loader_of(Draws()), 1)
