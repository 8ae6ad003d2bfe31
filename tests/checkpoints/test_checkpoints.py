"""The checkpoints of a run, without a Trainer: which files are written, which checkpoints are removed."""

import json
import os
import threading
from types import SimpleNamespace

import pytest
import torch
from transformers.trainer_callback import TrainerState

from mps_trainer.checkpoints import folders
from mps_trainer.checkpoints.checkpoints import Checkpoints
from mps_trainer.distributed import Processes

from .fake_trainer import FakeRun, FakeTrainer


@pytest.fixture
def args(make_args):
    return make_args(save_total_limit=None)


@pytest.fixture
def trainer(args):
    return FakeTrainer(args)


@pytest.fixture
def saver(trainer, tmp_path):
    return Checkpoints(trainer, str(tmp_path))


def names(folder) -> list[str]:
    return sorted(os.listdir(folder))


def with_checkpoints(folder, *steps: int) -> str:
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir()
    return str(folder)


@pytest.mark.parametrize(("resumed_at", "stale"), [(None, [2, 4, 6]), (4, [6])])
def test_checkpoints_of_later_steps_than_the_one_resumed_from_are_stale(saver, tmp_path, resumed_at, stale):
    run_dir = with_checkpoints(tmp_path, 2, 4, 6)
    saver.find_stale(resumed_at)
    assert saver.stale == {os.path.join(run_dir, f"checkpoint-{step}") for step in stale}


def test_each_process_has_a_file_with_its_generators_and_an_entry_with_its_position(saver, trainer, tmp_path):
    trainer._mt_run = FakeRun()
    trainer._mt_processes = processes = Processes(0, 2)
    processes.gather = lambda mine: [mine, {**mine, "order_seed": 8}] if isinstance(mine, dict) else [mine]
    trainer._save_rng_state = saver.save_rng
    trainer._mt_overrides = SimpleNamespace(has=lambda *names: True)
    saver.write()
    folder = tmp_path / "checkpoint-0"
    assert json.loads((folder / "loop_state.json").read_text()) == {
        "processes": [{"epoch": 1}, {"epoch": 1, "order_seed": 8}]
    }
    saved = [torch.load(folder / f"rng_state_{rank}.pth", weights_only=False) for rank in (0, 1)]
    assert [each["order_seed"] for each in saved] == [7, 8]
    assert [each[0] for each in trainer.called] == [  # in transformers' order
        *("save_model", "_save_optimizer_and_scheduler", "_save_scaler", "_rotate_checkpoints"),
    ]
    assert torch.equal(saved[0]["cpu"], torch.get_rng_state())


def test_a_scaler_is_among_the_states_where_there_is_one(saver, trainer):
    assert list(saver.states()) == ["optimizer.pt", "scheduler.pt"]
    trainer._mt_precision.scaler = scaler = torch.amp.GradScaler("cpu")
    found = saver.states("scaler.pt", "optimizer.pt")
    assert found == {"optimizer.pt": trainer.optimizer, "scaler.pt": scaler}


@pytest.mark.parametrize(
    ("best", "is_there", "expected", "left"),
    [
        ("checkpoint-4", False, "checkpoint-4", "There is none."),
        ("checkpoint-3", False, "before", "There is none."),
        ("checkpoint-3", True, "checkpoint-3", "The last one is {}."),  # an earlier save of this step is there
    ],
)
def test_a_checkpoint_that_was_not_saved_is_not_the_best(saver, trainer, tmp_path, best, is_there, expected, left):
    if is_there:
        with_checkpoints(tmp_path, 3)
    folder = str(tmp_path / "checkpoint-3")
    trainer.state.best_model_checkpoint = str(tmp_path / best)
    saver._note_result(folder, str(tmp_path / "before"), "the disk is full")
    assert trainer.state.best_model_checkpoint == str(tmp_path / expected)
    assert trainer.notes == [("fault", f"{folder} could not be saved: the disk is full. {left.format(folder)}")]


def test_a_failed_save_does_not_name_a_checkpoint_of_another_run(saver, trainer, tmp_path):
    with_checkpoints(tmp_path, 9)
    saver.find_stale(None)
    saver._note_result(str(tmp_path / "checkpoint-3"), None, "the disk is full")
    assert saver.unsaved.endswith("There is none.")


def test_a_background_save_after_a_failed_one_calls_on_save(saver, trainer, tmp_path):
    saver._note_result(str(tmp_path / "checkpoint-2"), None, "the disk is full")
    trainer._mt_run, trainer.state.global_step = FakeRun(), 3
    saver.write()
    saver.fire_on_save()
    saver.wait()
    assert [kind for kind, _ in trainer.notes] == ["fault", "checkpoint"]


def test_a_thread_that_outlives_its_run_rotates_by_the_settings_of_that_run(
    saver, trainer, args, make_args, tmp_path, monkeypatch
):
    opened = threading.Event()

    commit = folders.commit
    monkeypatch.setattr(folders, "commit", lambda *args: (opened.wait(20), commit(*args)))
    with_checkpoints(tmp_path, 2, 4, 6)
    saver.find_stale(4)
    trainer._mt_run, args.save_total_limit = FakeRun(), 2
    trainer.state.global_step, trainer.state.best_model_checkpoint = 5, str(tmp_path / "checkpoint-2")
    saver.write()
    # the run is interrupted, and the Trainer gets other arguments and another state
    trainer._mt_run, trainer.args = None, make_args(save_total_limit=1, overwrite_output_dir=True)
    trainer._mt_events.state = TrainerState(global_step=0)
    opened.set()
    saver.wait()
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-5"]
