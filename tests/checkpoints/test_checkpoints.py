"""The checkpoints of a run that does not train: which files are written, which checkpoints are removed."""

import errno
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from transformers.trainer_callback import TrainerState

from mps_trainer.checkpoints import checkpoints
from mps_trainer.checkpoints.checkpoints import wait_for_background
from mps_trainer.checkpoints.writers import Writer
from mps_trainer.distributed import Processes
from mps_trainer.errors import AnotherProcessFailedError
from mps_trainer.loop.run import TrainingRun

from .conftest import names


@pytest.fixture
def trainer(make_trainer):
    return TrainingRun(make_trainer()).trainer


@pytest.fixture
def saver(trainer):
    return trainer._mt_checkpoints


def test_a_scaler_is_among_the_states_where_there_is_one(make_trainer):
    for settings, scalers in (({}, []), ({"fp16": True}, ["scaler.pt"])):
        saver = TrainingRun(make_trainer(**settings)).trainer._mt_checkpoints
        assert list(saver.states()) == ["optimizer.pt", "scheduler.pt", *scalers]
        assert list(saver.states("scaler.pt", "optimizer.pt")) == ["optimizer.pt", *scalers]


@pytest.mark.parametrize("best", [3, 4])
def test_a_failed_save_does_not_replace_a_best_that_is_there(saver, trainer, tmp_path, caplog, best):
    folder = tmp_path / "run" / "checkpoint-3"
    (tmp_path / "run" / f"checkpoint-{best}").mkdir(parents=True)  # 3 of an earlier save
    trainer.state.best_model_checkpoint = kept = str(tmp_path / "run" / f"checkpoint-{best}")
    saver._note_result(str(folder), "before", "the disk is full")
    assert trainer.state.best_model_checkpoint == kept
    assert f"{folder} could not be saved: the disk is full. The last one is {kept}." in caplog.text


def test_a_background_save_after_a_failed_one_calls_on_save(saver, trainer, tmp_path, monkeypatch):
    noted = []
    monkeypatch.setattr(trainer._mt_events, "note", lambda *event: noted.append(event))
    saver._note_result(str(tmp_path / "run" / "checkpoint-2"), None, "the disk is full")
    told = saver.unsaved
    trainer.state.global_step = 3
    saver.write()
    saver.fire_on_save()
    saver.wait()
    assert noted == [("fault", told), ("checkpoint",)]


def test_a_thread_that_outlives_its_run_rotates_by_the_settings_of_that_run(saver, trainer, make_args, tmp_path, gate):
    for step in (2, 4, 6):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    trainer.state.global_step = 4
    saver.find_stale(str(tmp_path / "run" / "checkpoint-4"))
    gate.clear()
    trainer.args.save_total_limit, trainer.state.global_step = 2, 5
    trainer.state.best_model_checkpoint = str(tmp_path / "run" / "checkpoint-2")
    saver.write()
    # the run is interrupted, and the Trainer gets other arguments and another state
    trainer._mt_run, trainer.args = None, make_args(save_total_limit=1, overwrite_output_dir=True)
    trainer.state = TrainerState(global_step=0)
    gate.set()
    saver.wait()
    assert names(trainer) == ["checkpoint-2", "checkpoint-5"]


@pytest.fixture
def unfinished(saver, gate):
    """Returns the checkpoints of a run, of which one is being written in the background."""
    gate.clear()
    saver.write()
    yield saver
    gate.set()
    wait_for_background()


def test_a_signal_while_a_checkpoint_is_waited_for_does_not_forget_it(unfinished, trainer, gate):
    def ends(signum, frame):
        gate.set()
        raise SystemExit(143)

    before = signal.signal(signal.SIGALRM, ends)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(SystemExit):
            unfinished.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    unfinished.wait()
    assert names(trainer) == ["checkpoint-0"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_the_thread_that_it_does_not_have(unfinished):
    if (child := os.fork()) == 0:
        signal.alarm(10)
        unfinished.wait()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# Written by several processes together


@pytest.fixture
def together(make_trainer, monkeypatch):
    """`together(*errors)` returns what each process raises, or None, if writing its part fails so, or not for None.

    A thread stands for each process.
    """

    def together(*errors):
        size = len(errors)
        given, barrier = [None] * size, threading.Barrier(size, timeout=20)

        def all_gather_object(of_all, thing, group):
            given[group] = thing
            barrier.wait()
            of_all[:] = given
            barrier.wait()

        monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
        monkeypatch.setattr(checkpoints, "writer_for", lambda trainer, states: trainer.writer)
        trainers = [make_trainer(save_only_model=True) for _ in errors]
        for rank, trainer in enumerate(trainers):
            trainer.writer = Writer(mock.Mock(), mock.Mock(side_effect=errors[rank], return_value=None))
            trainer._mt_processes = Processes(rank, size)
            trainer._mt_processes.group = rank
        with ThreadPoolExecutor(size) as pool:
            saves = [pool.submit(trainer._mt_checkpoints.write) for trainer in trainers]
            return [save.exception() for save in saves]

    return together


def test_a_disk_that_is_full_for_one_is_full_for_all(together, tmp_path, caplog):
    full = OSError(errno.ENOSPC, "No space left on device")
    assert together(full, None) == [None, None]
    assert os.listdir(tmp_path / "run") == []
    assert caplog.text.count("checkpoint-0 could not be saved: the disk is full. There is none.") == 1


def test_what_else_goes_wrong_in_one_ends_all(together, tmp_path):
    first, second = together(None, KeyError("a fault of the program"))
    assert isinstance(second, KeyError)
    assert type(first) is AnotherProcessFailedError
    assert str(first).startswith("Process 1 has failed, so this one, process 0, ends too. KeyError: ")
    assert os.listdir(tmp_path / "run") == []
