"""Checkpoints written without a Trainer: by one process, beside it, or by several together."""

import errno
import json
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
from mps_trainer.errors import AnotherProcessFailedError, CheckpointError

from .fake_trainer import FakeTrainer


@pytest.fixture
def trainer(make_args, monkeypatch):
    return trainer_with(make_args, monkeypatch)


def trainer_with(make_args, monkeypatch, processes=None):
    """Returns a Trainer whose `outcomes` list what became of its checkpoints."""
    trainer = FakeTrainer(make_args(save_only_model=True))
    trainer._mt_processes = processes or Processes()
    trainer.outcomes = []
    monkeypatch.setattr(checkpoints, "writer_for", lambda trainer, states: trainer.writer)
    trainer._rotate_checkpoints = lambda output_dir: trainer.outcomes.append("saved")
    monkeypatch.setattr(Checkpoints, "_remove_old", lambda self, *args: self._trainer.outcomes.append("saved"))
    trainer._mt_events.note = lambda kind, text: trainer.outcomes.append({"fault": "unsaved"}[kind])
    return trainer


def save(saver, write, *, step=4, **kind):
    """Writes a checkpoint, and returns what became of it."""
    trainer = saver._trainer
    trainer.outcomes.clear()
    trainer.state.global_step, trainer.writer = step, Writer(write, **kind)
    saver.write()
    saver.wait()
    return list(trainer.outcomes)


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
def saver(trainer, tmp_path):
    return Checkpoints(trainer, str(tmp_path))


@pytest.mark.parametrize("in_background", [False, True])
def test_what_is_written_gets_the_name_of_its_step(saver, tmp_path, in_background):
    assert save(saver, writes("weights"), in_background=in_background) == ["saved"]
    folder = tmp_path / "checkpoint-4"
    assert os.listdir(tmp_path) == ["checkpoint-4"]
    assert sorted(os.listdir(folder)) == sorted(["weights", "trainer_state.json", manifest.NAME])
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 4


@pytest.mark.parametrize("in_background", [False, True])
def test_a_change_of_the_working_folder_does_not_split_a_checkpoint(trainer, tmp_path, monkeypatch, in_background):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def write_and_move(folder):
        writes("weights")(folder)
        os.chdir(tmp_path / "elsewhere")

    assert save(Checkpoints(trainer, "run"), write_and_move, in_background=in_background) == ["saved"]
    assert {"weights", "trainer_state.json"} <= set(os.listdir(tmp_path / "run" / "checkpoint-4"))
    assert os.listdir(tmp_path / "elsewhere") == []


def test_what_a_killed_run_left_is_not_in_it(saver, tmp_path):
    (tmp_path / "tmp-checkpoint-4").mkdir()
    (tmp_path / "tmp-checkpoint-4" / "left").touch()
    save(saver, writes("weights"))
    assert not (tmp_path / "checkpoint-4" / "left").exists()


@pytest.mark.parametrize("in_background", [False, True])
def test_a_full_disk_leaves_the_checkpoint_before_and_is_remembered_until_there_is_room(
    saver, tmp_path, caplog, in_background
):
    save(saver, writes("weights"), step=2)
    assert save(saver, full, in_background=in_background) == ["unsaved"]
    assert os.listdir(tmp_path) == ["checkpoint-2"]
    assert f"checkpoint-4 could not be saved: the disk is full. The last one is {tmp_path / 'checkpoint-2'}. " in (
        caplog.text
    )
    with pytest.raises(CheckpointError, match=r"Training has ended, but .*checkpoint-4 could not be saved"):
        saver.require_saved()
    assert save(saver, writes("weights")) == ["saved"]
    saver.require_saved()


@pytest.mark.parametrize("in_background", [False, True])
def test_what_else_goes_wrong_is_raised_and_leaves_nothing(saver, tmp_path, in_background):
    with pytest.raises(KeyError, match="a fault of the program"):
        save(saver, wrong, in_background=in_background)
    assert os.listdir(tmp_path) == []
    saver.require_saved()


@pytest.fixture
def unfinished(saver):
    """A Checkpoints whose checkpoint is being written in the background, until its event is set."""
    opened, trainer = threading.Event(), saver._trainer
    trainer.state.global_step = 4
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
                return save(savers[rank], writes("rest"), write_shards=write_shards[rank])
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
