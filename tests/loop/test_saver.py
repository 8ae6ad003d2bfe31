"""The saver of a run, without a Trainer: which files it writes, which checkpoints it removes."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers.trainer_callback import CallbackHandler, TrainerCallback, TrainerState

from mps_trainer.callbacks.events import Events
from mps_trainer.checkpoints import manifest
from mps_trainer.distributed import Processes
from mps_trainer.loop.hooks import SavingHooks
from mps_trainer.loop.saver import CheckpointSaver, Contents


@pytest.fixture
def args(make_args):
    return make_args(save_total_limit=None)


@pytest.fixture
def saver(args):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    contents = Contents(args, model, None, optimizer, schedule, scaler=None, run=None)
    events = Events(SimpleNamespace(args=args))
    events.handler = CallbackHandler([], model, None, optimizer, schedule)
    return CheckpointSaver(lambda: contents, events, Processes(0, 1), lambda state, path: state.save_to_json(path))


def names(folder) -> list[str]:
    return sorted(os.listdir(folder))


def with_checkpoints(folder, *steps: int) -> str:
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir()
    return str(folder)


def test_a_checkpoint_is_written_by_the_hooks_in_their_order(saver, tmp_path):
    called = []

    def hook(name):
        return lambda *args, **kwargs: called.append((name, *map(os.path.basename, args), *kwargs))

    hooks = SavingHooks(*map(hook, ["model", "optimizer", "scaler", "rng", "rotate", "push"]))
    saver._events.state.global_step = 3
    saver.save(str(tmp_path), hooks)
    assert [each[0] for each in called] == ["model", "optimizer", "scaler", "rng", "rotate"]
    assert called[-1] == ("rotate", "output_dir")
    assert names(tmp_path) == ["checkpoint-3"]
    assert saver.unsaved is None


def test_parts_are_written_under_their_names_and_a_scaler_only_where_there_is_one(saver, tmp_path):
    saver.save_parts(str(tmp_path), "optimizer.pt", "scheduler.pt")
    saver.save_parts(str(tmp_path), "scaler.pt")
    assert names(tmp_path) == ["optimizer.pt", "scheduler.pt"]
    saver.load_parts(None, "optimizer.pt")  # without a checkpoint there is nothing to load
    saver.load_parts(str(tmp_path), "optimizer.pt", "scheduler.pt", "scaler.pt")


@pytest.mark.parametrize(("resumed_at", "earlier"), [(None, [2, 4, 6]), (4, [6])])
def test_checkpoints_of_later_steps_than_the_one_resumed_from_are_of_another_run(saver, tmp_path, resumed_at, earlier):
    run_dir = with_checkpoints(tmp_path, 2, 4, 6)
    saver.note_earlier(run_dir, resumed_at)
    assert saver.earlier == {os.path.join(run_dir, f"checkpoint-{step}") for step in earlier}


def test_an_overwritten_run_loses_its_checkpoints_once_there_is_one_of_the_new_run(saver, args, tmp_path):
    run_dir = with_checkpoints(tmp_path, 2, 4)
    saver.note_earlier(run_dir, None)
    with_checkpoints(tmp_path, 5)
    saver.rotate(run_dir, TrainerState(global_step=5))
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-5"]
    args.overwrite_output_dir = True
    saver.rotate(run_dir, TrainerState(global_step=5))
    assert names(tmp_path) == ["checkpoint-5"]
    assert saver.earlier == set()


@pytest.mark.parametrize(("best", "left"), [("checkpoint-2", [2]), (None, [2, 4])])
def test_the_best_alone_is_kept_at_the_end_of_a_run_that_keeps_one(saver, args, tmp_path, best, left):
    run_dir = with_checkpoints(tmp_path, 2, 4)
    args.save_total_limit = 1
    saver._events.state = SimpleNamespace(best_model_checkpoint=best and os.path.join(run_dir, best))
    saver.keep_only_best(run_dir)
    assert names(tmp_path) == [f"checkpoint-{step}" for step in left]


class Run:
    """Stands for a run under way: a place, and what loading draws."""

    def __init__(self) -> None:
        self.data_rng = SimpleNamespace(state_dict=lambda: {"order_seed": 7})
        self.trainer = SimpleNamespace(_mt_overrides=SimpleNamespace(has=lambda *names: True))
        self.run_state = SimpleNamespace(state_dict=lambda: {"epoch": 1})


@pytest.mark.parametrize("size", [1, 2])
def test_each_process_has_a_file_with_its_generators_and_its_place(saver, tmp_path, size):
    processes = Processes(0, size)
    contents = dataclasses.replace(saver._contents(), run=Run())
    saver._contents = lambda: contents
    torch.manual_seed(3)
    if size > 1:
        saver._processes = processes
        processes.gather = lambda mine: [mine, {**mine, "order_seed": 8}]
        saver._note_rng()
    saver.save_rng(str(tmp_path))
    files = ["rng_state.pth"] if size == 1 else ["rng_state_0.pth", "rng_state_1.pth"]
    assert names(tmp_path) == files
    saved = [torch.load(tmp_path / name, weights_only=False) for name in files]
    assert [each["order_seed"] for each in saved] == [7, 8][:size]
    assert all(each["loop"] == {"epoch": 1} for each in saved)
    assert torch.equal(saved[0]["cpu"], torch.get_rng_state())


def test_the_generators_go_on_where_the_checkpoint_was_made(saver, tmp_path):
    torch.manual_seed(3)
    saver.save_rng(str(tmp_path))
    expected = torch.rand(2)
    saver.load_rng(str(tmp_path))
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    saver.load_rng(None)
    (tmp_path / "rng_state.pth").unlink()
    saver.load_rng(str(tmp_path))
    assert torch.equal(torch.rand(2), expected)


class Told(TrainerCallback):
    """Changes a checkpoint when it is told of it."""

    def __init__(self, run_dir) -> None:
        self.run_dir, self.steps = run_dir, []

    def on_save(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)
        (self.run_dir / f"checkpoint-{state.global_step}" / "notes.txt").write_text("mine")


@pytest.fixture
def told(saver, tmp_path):
    callback = Told(tmp_path)
    saver._events.handler.add_callback(callback)
    saver._events.state.global_step = 3
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    manifest.write(str(folder), 3, 1)
    manifest.note_whole(str(folder))
    return callback


def test_what_a_callback_adds_to_a_checkpoint_is_listed(saver, told, tmp_path):
    saver.tell(str(tmp_path))
    assert told.steps == [3]
    assert "notes.txt" in manifest.read(str(tmp_path / "checkpoint-3"))["files"]


def test_nobody_is_told_of_a_checkpoint_that_was_not_saved(saver, told, tmp_path):
    saver._manager.unsaved = "the disk is full"
    saver._events.control.should_save = True
    saver.tell(str(tmp_path))
    assert told.steps == []
    assert saver._events.control.should_save is False


def test_a_changed_checkpoint_that_cannot_be_listed_again_is_an_error_in_the_log(
    saver, told, tmp_path, caplog, monkeypatch
):
    def full(folder, step):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest, "renew", full)
    saver.tell(str(tmp_path))
    changed = f"{tmp_path / 'checkpoint-3'} was changed, and its manifest.json could not be: No space left on device."
    assert changed in caplog.messages


def test_what_a_run_asks_of_its_saver(saver, tmp_path):
    done, loaded = [], []
    asked = saver.checkpointing(
        str(tmp_path),
        lambda: done.append("saved"),
        [loaded.append, lambda folder: loaded.append("rest")],
        loaded.append,
    )
    saver._events.state.global_step = 4
    assert asked.newest() is None
    assert asked.folder() == str(tmp_path / "checkpoint-4")
    assert not asked.is_saved()
    with_checkpoints(tmp_path, 2, 4)
    assert asked.newest() == str(tmp_path / "checkpoint-4")
    assert asked.is_saved()
    saver.earlier = {str(tmp_path / "checkpoint-4")}
    assert not asked.is_saved()  # another run's
    asked.save()
    assert done == ["saved"]
    asked.save_again()  # the last one is there
    assert done == ["saved"]
    saver._manager.unsaved = "the disk was full"
    assert asked.unsaved() == "the disk was full"
    asked.save_again()
    assert done == ["saved", "saved"]
    asked.load("folder")
    asked.load_rng("generators")
    assert loaded == ["folder", "rest", "generators"]


def test_a_scaler_is_a_part_where_there_is_one(saver):
    assert list(saver.parts()) == ["optimizer.pt", "scheduler.pt"]
    scaler = torch.amp.GradScaler("cpu")
    contents = dataclasses.replace(saver._contents(), scaler=scaler)
    saver._contents = lambda: contents
    assert saver.parts("scaler.pt", "optimizer.pt") == {
        "optimizer.pt": saver._contents().optimizer, "scaler.pt": scaler,
    }  # fmt: skip


def test_a_best_evaluation_without_a_checkpoint_is_told_with_what_to_do(saver, caplog):
    saver._events.state.best_model_checkpoint, saver._events.state.best_global_step = None, 5
    saver.load_best()
    assert caplog.messages == [
        "load_best_model_at_end: the best evaluation, at step 5, has no checkpoint, so the last weights are kept. "
        "Give save_steps the value of eval_steps, or use save_strategy='best'."
    ]


def test_a_checkpoint_that_was_not_saved_is_not_the_best(saver, tmp_path):
    saver._events.state.best_model_checkpoint = str(tmp_path / "checkpoint-4")
    saver._take_back_best(str(tmp_path / "checkpoint-3"), "before")
    assert saver._events.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    saver._take_back_best(str(tmp_path / "checkpoint-4"), "before")
    assert saver._events.state.best_model_checkpoint == "before"
    folder = with_checkpoints(tmp_path, 4) + "/checkpoint-4"
    saver._events.state.best_model_checkpoint = folder
    saver._take_back_best(folder, "before")  # one of the step before it is there
    assert saver._events.state.best_model_checkpoint == folder
