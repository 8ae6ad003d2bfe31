"""Checkpoints written without a Trainer: beside a process that is interrupted, or by several together."""

import errno
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mps_trainer.checkpoints import checkpoints, manifest
from mps_trainer.checkpoints.checkpoints import Checkpoints, wait_for_background
from mps_trainer.checkpoints.writers import Writer
from mps_trainer.distributed import Processes
from mps_trainer.errors import AnotherProcessFailedError

from .fake_trainer import FakeTrainer


def trainer_with(make_args, monkeypatch, processes=None):
    """Returns a Trainer whose `outcomes` list what became of its checkpoints."""
    trainer = FakeTrainer(make_args(save_only_model=True))
    trainer._mt_processes = processes or Processes()
    trainer.state.global_step, trainer.outcomes = 4, []
    monkeypatch.setattr(checkpoints, "writer_for", lambda trainer, states: trainer.writer)
    trainer._rotate_checkpoints = lambda output_dir: trainer.outcomes.append("saved")
    monkeypatch.setattr(Checkpoints, "_remove_old", lambda self, *args: self._trainer.outcomes.append("saved"))
    trainer._mt_events.note = lambda kind, text: trainer.outcomes.append({"fault": "unsaved"}[kind])
    return trainer


def writes(name, text="of it"):
    def write(folder):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)

    return write


def full(folder):
    writes("begun")(folder)
    raise OSError(errno.ENOSPC, "No space left on device")


def wrong(folder):
    writes("begun")(folder)
    raise KeyError("a fault of the program")


@pytest.fixture
def unfinished(make_args, monkeypatch, tmp_path):
    """A Checkpoints whose checkpoint is being written in the background, until its event is set."""
    opened, trainer = threading.Event(), trainer_with(make_args, monkeypatch)
    saver = Checkpoints(trainer, str(tmp_path))
    trainer.writer = Writer(lambda folder: (opened.wait(20), writes("weights")(folder)), in_background=True)
    saver.write()
    saver.opened = opened
    yield saver
    opened.set()
    wait_for_background()


def test_a_signal_while_a_checkpoint_is_waited_for_does_not_forget_it(unfinished, tmp_path):
    def ends(signum, frame):
        unfinished.opened.set()
        raise SystemExit(143)

    before = signal.signal(signal.SIGALRM, ends)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(SystemExit):
            unfinished.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    unfinished.wait()
    assert os.listdir(tmp_path) == ["checkpoint-4"]
    assert unfinished._trainer.outcomes == ["saved"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_the_thread_that_it_does_not_have(unfinished):
    if (child := os.fork()) == 0:
        signal.alarm(10)
        unfinished.wait()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# Together


@pytest.fixture
def together(make_args, monkeypatch, tmp_path):
    """Returns a function that returns what each process gets from saving, or raises; a thread stands for each."""

    def together(*write_shards):
        size = len(write_shards)
        given, barrier = [None] * size, threading.Barrier(size, timeout=20)

        def all_gather_object(of_all, thing, group):
            given[group] = thing
            barrier.wait()
            of_all[:] = given
            barrier.wait()

        monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
        savers = []
        for rank in range(size):
            processes = Processes(rank, size)
            processes.group = rank
            savers.append(Checkpoints(trainer_with(make_args, monkeypatch, processes), str(tmp_path)))

        def process(rank):
            try:
                savers[rank]._trainer.writer = Writer(writes("rest"), write_shards[rank])
                savers[rank].write()
                return savers[rank]._trainer.outcomes
            except Exception as error:
                return error

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(process, range(size)))

    return together


def test_each_process_writes_its_part_and_the_first_one_the_rest(together, tmp_path):
    assert together(writes("part-0"), writes("part-1")) == [["saved"], []]
    names = ["part-0", "part-1", "rest", "trainer_state.json", manifest.NAME]
    assert sorted(os.listdir(tmp_path / "checkpoint-4")) == sorted(names)


@pytest.mark.parametrize("parts", [(full, writes("part-1")), (writes("part-0"), full)], ids=["first", "second"])
def test_a_disk_that_is_full_for_one_is_full_for_all(together, tmp_path, caplog, parts):
    assert together(*parts) == [["unsaved"], []]
    assert os.listdir(tmp_path) == []
    assert caplog.text.count("checkpoint-4 could not be saved: the disk is full. There is none.") == 1


def test_what_else_goes_wrong_in_one_ends_all(together, tmp_path):
    first, second = together(writes("part-0"), wrong)
    assert isinstance(second, KeyError)
    assert type(first) is AnotherProcessFailedError
    assert str(first).startswith("Process 1 has failed, so this one, process 0, ends too. KeyError: ")
    assert os.listdir(tmp_path) == []
