"""The checkpoints of a run, without a Trainer: which files are written, which checkpoints are removed."""

from __future__ import annotations

import json
import os
import threading
from types import SimpleNamespace

import pytest
import torch
from transformers.trainer_callback import TrainerCallback, TrainerState

from mps_trainer.checkpoints import loading, manifest
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


def test_a_checkpoint_is_written_by_the_methods_of_the_trainer_in_their_order(saver, trainer, tmp_path):
    trainer.state.global_step = 3
    saver.write()
    assert [each[0] for each in trainer.called] == [
        "save_model", "_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state", "_rotate_checkpoints",
    ]  # fmt: skip
    assert {each[1] for each in trainer.called[:-1]} == {"tmp-checkpoint-3"}
    assert trainer.called[-1] == ("_rotate_checkpoints", "output_dir")
    assert names(tmp_path) == ["checkpoint-3"]
    assert saver.unsaved() is None


@pytest.mark.parametrize(("resumed_at", "stale"), [(None, [2, 4, 6]), (4, [6])])
def test_checkpoints_of_later_steps_than_the_one_resumed_from_are_stale(saver, tmp_path, resumed_at, stale):
    run_dir = with_checkpoints(tmp_path, 2, 4, 6)
    saver.find_stale(resumed_at)
    assert saver.stale == {os.path.join(run_dir, f"checkpoint-{step}") for step in stale}


def test_rotation_in_another_folder_leaves_the_run_alone(saver, trainer, args, tmp_path):
    args.save_total_limit, trainer._mt_run = 1, FakeRun()
    other = tmp_path / "other"
    other.mkdir()
    with_checkpoints(tmp_path, 2, 4)
    with_checkpoints(other, 2, 4)
    saver.rotate(TrainerState(global_step=2), str(other))
    assert (names(other), names(tmp_path)) == (["checkpoint-2"], ["checkpoint-2", "checkpoint-4", "other"])


@pytest.mark.parametrize(("best", "left"), [("checkpoint-2", [2]), (None, [2, 4])])
def test_the_best_alone_is_kept_at_the_end_of_a_run_that_keeps_one(saver, trainer, args, tmp_path, best, left):
    run_dir = with_checkpoints(tmp_path, 2, 4)
    args.save_total_limit = 1
    trainer._mt_events.state = SimpleNamespace(best_model_checkpoint=best and os.path.join(run_dir, best))
    saver.keep_only_best()
    assert names(tmp_path) == [f"checkpoint-{step}" for step in left]


@pytest.mark.parametrize("size", [1, 2])
def test_each_process_has_a_file_with_its_generators_and_an_entry_with_its_position(saver, trainer, tmp_path, size):
    trainer._mt_run = FakeRun()
    torch.manual_seed(3)
    trainer._mt_processes = processes = Processes(0, size)
    processes.gather = lambda mine: [mine, {**mine, "order_seed": 8}][:size] if isinstance(mine, dict) else [mine]
    trainer._save_rng_state = saver.save_rng
    trainer._mt_overrides = SimpleNamespace(has=lambda *names: True)
    saver.write()
    files = ["rng_state.pth"] if size == 1 else ["rng_state_0.pth", "rng_state_1.pth"]
    folder = tmp_path / "checkpoint-0"
    assert [name for name in names(folder) if name.startswith("rng")] == files
    assert json.loads((folder / "loop_state.json").read_text()) == {
        "processes": [{"epoch": 1}, {"epoch": 1, "order_seed": 8}][:size]
    }
    saved = [torch.load(folder / name, weights_only=False) for name in files]
    assert [each["order_seed"] for each in saved] == [7, 8][:size]
    assert torch.equal(saved[0]["cpu"], torch.get_rng_state())


class AddsNotes(TrainerCallback):
    """Adds a file to a checkpoint at on_save."""

    def __init__(self, run_dir) -> None:
        self.run_dir, self.steps = run_dir, []

    def on_save(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)
        (self.run_dir / f"checkpoint-{state.global_step}" / "notes.txt").write_text("mine")


@pytest.fixture
def callback(trainer, tmp_path):
    callback = AddsNotes(tmp_path)
    trainer._mt_events.handler.add_callback(callback)
    trainer.state.global_step = 3
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    manifest.write(str(folder), 3, 1)
    assert manifest.fault(str(folder)) is None
    return callback


def test_a_changed_checkpoint_that_cannot_be_listed_again_is_an_error_in_the_log(
    saver, callback, tmp_path, caplog, monkeypatch
):
    def full(folder, step):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest, "renew", full)
    saver.fire_on_save()
    changed = f"{tmp_path / 'checkpoint-3'} was changed, and its manifest.json could not be: No space left on device."
    assert changed in caplog.messages


def test_a_run_finds_saves_and_loads_its_checkpoints(saver, trainer, tmp_path):
    trainer._mt_run = FakeRun("the model")
    trainer.state.global_step = 4
    assert saver.newest() is None
    assert saver.folder() == str(tmp_path / "checkpoint-4")
    assert not saver.is_saved()
    with_checkpoints(tmp_path, 2, 4)
    assert saver.newest() == str(tmp_path / "checkpoint-4")
    assert saver.is_saved()
    saver.stale = {str(tmp_path / "checkpoint-4")}
    assert not saver.is_saved()
    assert saver.newest() == str(tmp_path / "checkpoint-2")
    save = ("_save_checkpoint", "the model", None)
    saver.save()
    assert trainer.called == [save]
    saver.save_again()  # the last one is there
    assert trainer.called == [save]
    saver._unsaved = "the disk was full"
    assert saver.unsaved() == "the disk was full"
    saver.save_again()
    assert trainer.called == [save, save]


def test_a_scaler_is_among_the_states_where_there_is_one(saver, trainer):
    assert list(saver.states()) == ["optimizer.pt", "scheduler.pt"]
    trainer._mt_precision.scaler = scaler = torch.amp.GradScaler("cpu")
    found = saver.states("scaler.pt", "optimizer.pt")
    assert found == {"optimizer.pt": trainer.optimizer, "scaler.pt": scaler}


def test_a_best_evaluation_without_a_checkpoint_is_told_with_what_to_do(saver, trainer, caplog):
    trainer.state.best_model_checkpoint, trainer.state.best_global_step = None, 5
    saver.load_best()
    assert caplog.messages == [
        "load_best_model_at_end: the best evaluation, at step 5, has no checkpoint, so the last weights are kept. "
        "Give save_steps the value of eval_steps, or use save_strategy='best'."
    ]


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
    assert saver.unsaved().endswith("There is none.")


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

    commit = manifest.commit
    monkeypatch.setattr(manifest, "commit", lambda *args: (opened.wait(20), commit(*args)))
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


# A relative folder


@pytest.fixture
def moved(trainer, tmp_path, monkeypatch):
    """The checkpoints of a run into "run", whose callback has changed the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    relative = Checkpoints(trainer, "run")
    trainer._mt_run, trainer.state.global_step = FakeRun(), 2
    trainer._mt_overrides = SimpleNamespace(has=lambda *names: True)  # which writes in the foreground
    trainer._rotate_checkpoints = lambda output_dir: relative.rotate(trainer.state, output_dir)
    relative.write()
    assert (relative.folder(), relative.newest()) == ("run/checkpoint-2", "run/checkpoint-2")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return relative


def test_a_changed_working_folder_does_not_move_the_run(moved, trainer, args, tmp_path):
    trainer._mt_events.handler.add_callback(AddsNotes(tmp_path / "run"))
    trainer.state.global_step, args.save_total_limit = 4, 1
    moved.write()
    moved.fire_on_save()
    assert names(tmp_path / "run") == ["checkpoint-4"]
    assert "notes.txt" in manifest.read(str(tmp_path / "run" / "checkpoint-4"))["files"]
    assert os.listdir() == []
    assert moved.is_saved()
    assert (moved.folder(), moved.newest()) == (str(tmp_path / "run" / "checkpoint-4"),) * 2


def test_a_relative_best_checkpoint_is_found_after_a_change_of_the_working_folder(moved, trainer, args, monkeypatch):
    loaded = []
    monkeypatch.setattr(loading, "load_weights", lambda model, folder: loaded.append(folder))
    trainer.state.best_model_checkpoint = "run/checkpoint-2"
    trainer.state.global_step, args.save_total_limit = 4, 1
    moved.write()
    assert names(moved.run_dir) == ["checkpoint-2", "checkpoint-4"]
    moved.load_best()
    moved.keep_only_best()
    assert loaded == [os.path.join(moved.run_dir, "checkpoint-2")]
    assert names(moved.run_dir) == ["checkpoint-2"]
    assert trainer.state.best_model_checkpoint == "run/checkpoint-2"
