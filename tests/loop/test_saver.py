"""The saver of a run, without a Trainer: which files it writes, which checkpoints it removes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers.trainer_callback import CallbackHandler, TrainerState

from mps_trainer.callbacks.events import Events
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
    events = Events(lambda: args)
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
