"""Checkpoints written without a Trainer: by one process, beside it, or by several together."""

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers import TrainerState

from mps_trainer.checkpoints import manifest
from mps_trainer.checkpoints.manager import CheckpointManager, Writer
from mps_trainer.errors import CheckpointError


def save(manager, run_dir, write, *, step=4, **kind):
    """Records the calls after a checkpoint was written, or was not."""
    called = []
    outcomes = (lambda: called.append("saved"), lambda: called.append("unsaved"))
    manager.save(str(run_dir), TrainerState(global_step=step), Writer(write, **kind), *outcomes)
    manager.background.wait()
    return called


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
def manager():
    return CheckpointManager(lambda state, path: state.save_to_json(path))


@pytest.mark.parametrize("in_background", [False, True])
def test_what_is_written_gets_the_name_of_its_step(manager, tmp_path, in_background):
    assert save(manager, tmp_path, writes("weights"), in_background=in_background) == ["saved"]
    folder = tmp_path / "checkpoint-4"
    assert os.listdir(tmp_path) == ["checkpoint-4"]
    assert sorted(os.listdir(folder)) == sorted(["weights", "trainer_state.json", manifest.NAME])
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 4


@pytest.mark.parametrize("in_background", [False, True])
def test_a_change_of_the_working_folder_does_not_split_a_checkpoint(manager, tmp_path, monkeypatch, in_background):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def write_and_move(folder):
        writes("weights")(folder)
        os.chdir(tmp_path / "elsewhere")

    assert save(manager, "run", write_and_move, in_background=in_background) == ["saved"]
    assert {"weights", "trainer_state.json"} <= set(os.listdir(tmp_path / "run" / "checkpoint-4"))
    assert os.listdir(tmp_path / "elsewhere") == []


def test_what_a_killed_run_left_is_not_in_it(manager, tmp_path):
    (tmp_path / "tmp-checkpoint-4").mkdir()
    (tmp_path / "tmp-checkpoint-4" / "left").touch()
    save(manager, tmp_path, writes("weights"))
    assert not (tmp_path / "checkpoint-4" / "left").exists()


@pytest.mark.parametrize("in_background", [False, True])
def test_a_full_disk_leaves_the_checkpoint_before_and_is_remembered_until_there_is_room(
    manager, tmp_path, caplog, in_background
):
    save(manager, tmp_path, writes("weights"), step=2)
    assert save(manager, tmp_path, full, in_background=in_background) == ["unsaved"]
    assert os.listdir(tmp_path) == ["checkpoint-2"]
    assert f"checkpoint-4 could not be saved: the disk is full. The last one is {tmp_path / 'checkpoint-2'}. " in (
        caplog.text
    )
    with pytest.raises(CheckpointError, match=r"Training has ended, but .*checkpoint-4 could not be saved"):
        manager.require_saved()
    assert save(manager, tmp_path, writes("weights")) == ["saved"]
    manager.require_saved()


@pytest.mark.parametrize("in_background", [False, True])
def test_what_else_goes_wrong_is_raised_and_leaves_nothing(manager, tmp_path, in_background):
    with pytest.raises(KeyError, match="a fault of the program"):
        save(manager, tmp_path, wrong, in_background=in_background)
    assert os.listdir(tmp_path) == []
    manager.require_saved()


# Together


def together(manager, run_dir, *write_part):
    """Returns what each process gets from saving, or raises; a thread stands for each."""
    size = len(write_part)
    given, barrier = [None] * size, threading.Barrier(size, timeout=20)

    def process(rank):
        def gather(thing):
            given[rank] = thing
            barrier.wait()
            everybodys = list(given)
            barrier.wait()
            return everybodys

        try:
            kind = {"write_part": write_part[rank], "rank": rank, "gather": gather}
            return save(manager, run_dir, writes("rest"), **kind)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(process, range(size)))


def test_each_process_writes_its_part_and_the_first_one_the_rest(manager, tmp_path):
    assert together(manager, tmp_path, writes("part-0"), writes("part-1")) == [["saved"], []]
    names = ["part-0", "part-1", "rest", "trainer_state.json", manifest.NAME]
    assert sorted(os.listdir(tmp_path / "checkpoint-4")) == sorted(names)


@pytest.mark.parametrize("parts", [(full, writes("part-1")), (writes("part-0"), full)], ids=["first", "second"])
def test_a_disk_that_is_full_for_one_is_full_for_all(manager, tmp_path, caplog, parts):
    assert together(manager, tmp_path, *parts) == [["unsaved"], []]
    assert os.listdir(tmp_path) == []
    assert caplog.text.count("checkpoint-4 could not be saved: the disk is full. There is none.") == 1


def test_what_else_goes_wrong_in_one_ends_all(manager, tmp_path):
    first, second = together(manager, tmp_path, writes("part-0"), wrong)
    assert isinstance(second, KeyError)
    assert type(first) is RuntimeError
    assert str(first).startswith("Process 1 has failed, so this one, process 0, ends too. KeyError: ")
    assert os.listdir(tmp_path) == []
