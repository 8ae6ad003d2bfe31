"""Checkpoints written beside training, and disks that do not take them."""

import errno
import io
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from unittest import mock

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel, TrainerCallback

from mps_trainer import Trainer
from mps_trainer.checkpoints import folders, manifest, writers
from mps_trainer.checkpoints.checkpoints import wait_for_background
from mps_trainer.checkpoints.files import why_not_written
from mps_trainer.checkpoints.folders import find_checkpoints
from mps_trainer.errors import CheckpointError
from mps_trainer.hub import upload
from tests.conftest import assert_same_weights, callback, refusal, weights
from tests.tiny import tiny

from .conftest import names
from .test_resuming import BEST, scores

SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "learning_rate": 1e-2}
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.every_device
def test_training_goes_on_while_a_checkpoint_of_an_earlier_step_is_written(make_trainer, trained, gate, tmp_path):
    at_two, completes = {}, Completes()

    def hold(state, model, **_):
        if state.global_step == 2:
            gate.clear()
            at_two.update(weights(model))

    def release(state, **_):
        if state.global_step == 3:  # the step after the save has been trained
            assert (names(trainer), completes.seen) == ([], [])
            gate.set()
            wait_for_background()

    holds = callback(on_step_end=hold, on_step_begin=release)
    trainer = make_trainer({"callbacks": [holds, completes]}, **SAVING)
    trainer.train()
    assert names(trainer) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert completes.seen == ALL_COMPLETE
    assert completes.steps[0] == 4  # at the end of the step under way, before the next save
    settings = {**SAVING, "max_steps": 2, "output_dir": str(tmp_path / "other")}
    resumed = trained(resume=tmp_path / "run" / "checkpoint-2", **settings)
    assert_same_weights(weights(resumed.model), at_two)


@pytest.mark.parametrize("save_async", [True, False])
def test_what_else_goes_wrong_is_an_error_at_the_next_step_and_leaves_nothing(make_trainer, monkeypatch, save_async):
    monkeypatch.setattr(folders, "commit", mock.Mock(side_effect=KeyError("a fault of the program")))
    trainer = make_trainer(**{**SAVING, "max_steps": 200, "save_async": save_async})
    assert "a fault of the program" in refusal(trainer.train, kind=KeyError)
    assert trainer.state.global_step < 200
    assert os.listdir(trainer.args.output_dir) == []


def test_a_deleted_working_folder_does_not_stop_a_run_into_another(trained, tmp_path, monkeypatch):
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    trainer = trained(**SAVING, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True)
    assert os.path.dirname(trainer.state.best_model_checkpoint) == trainer.args.output_dir


@pytest.mark.parametrize(("moves_after", "listens"), [(1, False), (1, True), (3, False)])
def test_a_changed_working_folder_does_not_move_the_run(trained, tmp_path, monkeypatch, moves_after, listens):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    listed, saved = [], tmp_path / "run" / "checkpoint-2"

    def move(checkpoint, **_):
        listed.append("notes.txt" in manifest.read(checkpoint)["files"])
        if len(listed) == moves_after:
            os.chdir(tmp_path / "elsewhere")

    def write(state, **_):
        (tmp_path / "run" / f"checkpoint-{state.global_step}" / "notes.txt").touch()

    hears = {"on_save": write} if listens else {}  # training waits then
    trainer = trained(
        {"callbacks": [callback(on_checkpoint_complete=move, **hears)], "compute_metrics": scores(9, 8, 7)},
        **{**SAVING, **BEST, "eval_steps": 2, "output_dir": "run", "save_total_limit": 1, "report": True},
        load_best_model_at_end=True,
    )
    assert listed == [listens] * 3
    assert os.listdir(tmp_path / "elsewhere") == []
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoint-2", "report.html", "run_record.json"]
    assert trainer.state.best_model_checkpoint == ("run/checkpoint-2" if moves_after == 3 else f"{saved}")
    assert_same_weights(weights(trainer.model), load_file(saved / "model.safetensors"))


class HearsSaves(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_save(self, args, state, control, **kwargs):
        assert os.path.isdir(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))
        self.steps.append(state.global_step)


class Completes(TrainerCallback):
    """Notes each complete checkpoint: its name, its fault, the thread, and the step that training has reached."""

    def __init__(self):
        self.seen, self.steps = [], []

    def on_checkpoint_complete(self, args, state, control, checkpoint, **kwargs):
        is_main = threading.current_thread() is threading.main_thread()
        self.seen.append((os.path.basename(checkpoint), manifest.fault(checkpoint), is_main))
        self.steps.append(state.global_step)


def overriding(name):
    """Returns a subclass that overrides a method and calls it."""
    return type("Own", (Trainer,), {name: lambda self, *args: getattr(Trainer, name)(self, *args)})


@pytest.mark.parametrize(
    ("trainer", "settings", "beside"),
    [
        ({}, {}, True),
        ({"callbacks": [HearsSaves()]}, {}, False),
        ({}, {"disable_tqdm": False}, True),
        ({"kind": overriding("_save")}, {}, False),
        ({}, {"save_async": False}, False),
        ({}, {"save_on_each_node": True}, False),
    ],
    ids=["safe", "on_save is listened to", "the display listens", "overridden", "not wanted", "on each node"],
)
def test_it_is_written_beside_training_only_where_that_is_safe(make_trainer, monkeypatch, trainer, settings, beside):
    threads, commit = set(), folders.commit

    def note_thread(*args):
        threads.add((threading.current_thread().name, threading.current_thread().daemon))
        return commit(*args)

    monkeypatch.setattr(folders, "commit", note_thread)
    completes = Completes()
    callbacks = [*trainer.get("callbacks", []), completes]
    make_trainer({**trainer, "callbacks": callbacks}, **SAVING, **settings).train()
    assert completes.seen == ALL_COMPLETE
    assert beside or completes.steps == [2, 4, 6]  # told at once
    assert threads == {("mps_trainer checkpoint", True) if beside else (threading.main_thread().name, False)}


def test_a_run_reads_the_manifests_beside_it_at_its_first_save_alone(trained, monkeypatch):
    monkeypatch.setattr(folders, "next_save", asked := mock.Mock(side_effect=folders.next_save))
    output_dir = trained(**SAVING).args.output_dir
    numbers = [manifest.entry(os.path.join(output_dir, f"checkpoint-{step}"), "save") for step in (2, 4, 6)]
    assert (asked.call_count, numbers) == (1, [1, 2, 3])


def test_not_where_a_second_copy_would_crowd_the_memory(make_trainer, monkeypatch):
    monkeypatch.setattr(writers, "physical_memory", lambda: 8 * 100)
    test_it_is_written_beside_training_only_where_that_is_safe(make_trainer, monkeypatch, {}, {}, beside=False)


@pytest.mark.parametrize("name", ["peft_config", "quantization_method"])
def test_nor_where_the_model_saves_itself(make_trainer, make_model, monkeypatch, name):
    monkeypatch.setattr(model := make_model(), name, {}, raising=False)
    model.save_pretrained = lambda folder, **_: os.makedirs(folder, exist_ok=True)
    test_it_is_written_beside_training_only_where_that_is_safe(
        make_trainer, monkeypatch, {"model": model}, {}, beside=False
    )


ALL_COMPLETE = [(f"checkpoint-{step}", None, True) for step in (2, 4, 6)]


def test_a_changed_checkpoint_that_cannot_be_listed_again_is_an_error_in_the_log(trained, monkeypatch, caplog):
    monkeypatch.setattr(manifest, "renew", renewed := mock.Mock(side_effect=FULL))
    trainer = trained({"callbacks": [HearsSaves()]}, **{**SAVING, "max_steps": 2})
    folder = os.path.join(trainer.args.output_dir, "checkpoint-2")
    assert renewed.call_args.args == (os.path.abspath(folder), 2)
    assert f"{folder} was changed, and its manifest.json could not be: No space left on device." in caplog.messages


def test_a_checkpoint_that_a_callback_saves_is_told_as_complete(make_trainer):
    def save(state, **_):
        if state.global_step == 1:
            trainer._save_checkpoint(trainer.model, None)

    completes = Completes()
    trainer = make_trainer({"callbacks": [callback(on_step_end=save), completes]}, max_steps=2, save_async=False)
    trainer.train()
    assert completes.seen == [("checkpoint-1", None, True)]


@pytest.mark.parametrize(
    ("trainer", "beside"),
    [
        ({}, True),
        ({"callbacks": [callback(on_push_begin=dict)]}, False),
        ({"kind": overriding("_push_from_checkpoint")}, False),
    ],
    ids=["safe", "on_push_begin is listened to", "overridden"],
)
def test_a_checkpoint_is_uploaded_once_it_is_complete(make_trainer, monkeypatch, trainer, beside):
    uploaded = []

    def push(trainer, checkpoint):
        is_main = threading.current_thread() is threading.main_thread()
        uploaded.append((os.path.basename(checkpoint), manifest.fault(checkpoint), is_main))

    monkeypatch.setattr(upload, "create_repository", lambda *args: "me/tiny")
    monkeypatch.setattr(upload, "push_checkpoint", push)
    pushing = {"push_to_hub": True}
    test_it_is_written_beside_training_only_where_that_is_safe(make_trainer, monkeypatch, trainer, pushing, beside)
    assert uploaded == ALL_COMPLETE


def test_a_checkpoint_that_is_saved_by_hand_goes_where_the_arguments_say_now(trained, tmp_path):
    trainer = trained(**{**SAVING, "max_steps": 2})
    trainer.args.output_dir = str(tmp_path / "later")
    (tmp_path / "later" / "tmp-checkpoint-2" / "of a killed run").mkdir(parents=True)
    trainer._save_checkpoint(trainer.model, None)
    assert os.listdir(tmp_path / "later") == ["checkpoint-2"]
    by_hand, in_run = (set(os.listdir(tmp_path / name / "checkpoint-2")) for name in ("later", "run"))
    assert by_hand == in_run - {"loop_state.json"}


@pytest.fixture
def small_files(monkeypatch):
    """Files cannot grow beyond a size: what a quota does. Call it with the size, or None for no limit.

    What the tests print goes into files, too, so it is kept in memory meanwhile.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size):
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, io.StringIO())
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    limit(None)
    signal.signal(signal.SIGXFSZ, handler)


def limited(limit, first, last, size):
    """Returns a callback that lets no file be larger than some bytes from one step to another."""

    def change(state, **_):
        if state.global_step in (first, last):
            wait_for_background()  # an earlier save may be under way
            limit(size if state.global_step == first else None)

    return callback(on_step_end=change)


@pytest.mark.parametrize(("save_async", "hears_saves"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize(
    ("size", "best"),
    [(100, (9, 1, 2, 3)), (700, (8, 9, 1, 2)), (3000, (8, 1, 9, 2))],
    ids=["weights", "optimizer", "late"],
)
def test_training_goes_on_with_the_last_checkpoint_when_the_disk_is_full(
    make_trainer, trained, small_files, caplog, save_async, hears_saves, size, best
):
    settings = {**SAVING, **BEST, "max_steps": 8, "save_async": save_async, "logging_strategy": "no", "eval_steps": 2}
    completes, saves = Completes(), HearsSaves()
    callbacks = [completes, limited(small_files, 4, 7, size), *([saves] if hears_saves else [])]
    trainer = trained({"callbacks": callbacks, "compute_metrics": scores(*best)}, **settings)
    assert names(trainer) == ["checkpoint-2", "checkpoint-8"]
    assert trainer.state.best_global_step == best.index(9) * 2 + 2
    assert os.path.basename(trainer.state.best_model_checkpoint) == "checkpoint-2"  # the best one that was saved
    assert completes.seen == [("checkpoint-2", None, True), ("checkpoint-8", None, True)]
    assert saves.steps == ([2, 8] if hears_saves else [])
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 2
    assert "checkpoint-4 could not be saved: " in told[0].getMessage()
    assert f"The last one is {find_checkpoints(trainer.args.output_dir)[0]}." in told[0].getMessage()
    assert not [name for name in os.listdir(trainer.args.output_dir) if name.startswith("tmp")]
    again = make_trainer({"compute_metrics": scores(0)}, **settings)
    assert again.train(resume_from_checkpoint=True).global_step == 8


@pytest.mark.parametrize("save_async", [True, False])
def test_a_last_checkpoint_that_failed_is_tried_once_more(make_trainer, small_files, caplog, save_async):
    def free(**_):
        """Makes room again, after the last save has failed."""
        wait_for_background()
        small_files(None)

    callbacks = [limited(small_files, 6, -1, 100), callback(on_epoch_end=free)]
    trainer = make_trainer({"callbacks": callbacks}, **SAVING, save_async=save_async)
    assert trainer.train().global_step == 6
    assert names(trainer) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


@pytest.mark.parametrize("save_async", [True, False])
def test_a_last_checkpoint_that_cannot_be_saved_is_an_error_at_the_end(
    make_trainer, small_files, tmp_path, save_async
):
    (tmp_path / "run" / "checkpoint-9").mkdir(parents=True)  # another run's
    trainer = make_trainer({"callbacks": [limited(small_files, 5, -1, 100)]}, **SAVING, save_async=save_async)
    said = refusal(trainer.train, kind=CheckpointError)
    small_files(None)  # pytest writes the result next, perhaps into a file
    last = tmp_path / "run" / "checkpoint-4"
    assert f"checkpoint-6 could not be saved: file too large. The last one is {last}." in said
    assert trainer.state.global_step == 6
    assert "train_loss" in trainer.state.log_history[-1]  # all else was done


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (FULL, "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), "permission denied"),
        (OSError(errno.EIO, "Input/output error"), "input/output error"),
        (RuntimeError("[enforce fail] PytorchStreamWriter failed writing file data/0: file write failed"), "["),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk quota is used up"),
        (RuntimeError("open file failed with strerror: No space left on device"), "the disk is full"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (OSError("Can't load the configuration"), None),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (SafetensorError("Error while serializing: shapes differ"), None),
        (Exception("No space left on device (os error 28)"), "the disk is full"),
        (KeyError("weight"), None),
    ],
    ids=repr,
)
def test_a_disk_that_fails_is_told_from_a_program_that_does(tmp_path, error, why):
    found = why_not_written(error, str(tmp_path))
    assert found == why or (why == "[" and found.startswith(why))


@pytest.mark.parametrize("message", ["basic_ios::clear: iostream error", "[enforce fail] . unexpected pos 64 vs 0"])
def test_the_disk_is_asked_where_the_error_does_not_say_why(tmp_path, monkeypatch, message):
    error = RuntimeError(message)
    assert why_not_written(error, str(tmp_path)) == message  # there is room again
    assert list(tmp_path.iterdir()) == []

    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=FULL))
    assert why_not_written(error, str(tmp_path)) == "the disk is full"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root of a Linux mounts a small disk")
@pytest.mark.parametrize("room", ["size=4m,nr_inodes=12", "size=40k", "size=24k,nr_inodes=100", "size=4m,nr_inodes=6"])
def test_training_goes_on_while_a_small_disk_is_full(make_trainer, tmp_path, caplog, room):
    run = tmp_path / "run"
    run.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", room, "none", str(run)], capture_output=True)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        trainer = make_trainer(**{**SAVING, "save_steps": 1, "max_steps": 3})
        assert "the disk is full" in refusal(trainer.train, kind=CheckpointError)
        assert trainer.state.global_step == 3
        assert "could not be saved: the disk is full" in caplog.text
        assert not [path for path in os.listdir(run) if path.startswith("tmp-")]
    finally:
        subprocess.run(["umount", str(run)], check=True)


def test_what_went_wrong_in_a_run_that_was_interrupted_is_not_of_the_next(make_trainer, monkeypatch):
    def interrupt(args, state, **_):
        if state.global_step == 2:
            args.save_on_signal = False
            trainer._save_checkpoint(trainer.model, None)
            raise KeyboardInterrupt

    interrupts = callback(on_step_end=interrupt)
    trainer = make_trainer({"callbacks": [interrupts]}, **{**SAVING, "save_steps": 100})
    with monkeypatch.context() as patch:
        patch.setattr(folders, "commit", mock.Mock(side_effect=KeyError("of the first run")))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        wait_for_background()
    trainer.remove_callback(interrupts)
    assert trainer.train().global_step == 6


def test_the_process_that_is_to_save_writes_the_model_though_it_is_not_the_first_of_all(
    make_args, tmp_path, monkeypatch
):
    """With save_on_each_node the first one of each machine; transformers would leave it to the first of all."""
    monkeypatch.setattr(PreTrainedModel, "should_save_on_this_rank", lambda self, is_main: False, raising=False)
    model = tiny("BertForSequenceClassification")
    writers.write_model_files(model, None, make_args(), str(tmp_path))
    assert {"config.json", "model.safetensors"} <= set(os.listdir(tmp_path))
    assert "should_save_on_this_rank" not in vars(model)


def test_a_model_may_be_saved_while_a_checkpoint_of_it_is_written(make_args, tmp_path, monkeypatch):
    model, save = tiny("BertForSequenceClassification"), PreTrainedModel.save_pretrained

    def save_twice(model, folder, **given):
        monkeypatch.setattr(PreTrainedModel, "save_pretrained", save)
        writers.write_model_files(model, None, make_args(), str(tmp_path / "meanwhile"))
        save(model, folder, **given)

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", save_twice)
    writers.write_model_files(model, None, make_args(), str(tmp_path / "checkpoint"))
    assert all((tmp_path / name / "model.safetensors").exists() for name in ("meanwhile", "checkpoint"))


def test_a_checkpoint_has_the_generators_after_what_an_override_of_saving_draws(trained):
    class Samples(Trainer):
        def save_model(self, output_dir=None, _internal_call=False):
            super().save_model(output_dir, _internal_call)
            torch.rand(1)
            self.after = torch.get_rng_state()

    trainer = trained({"kind": Samples}, **{**SAVING, "max_steps": 2})
    saved = torch.load(f"{find_checkpoints(trainer.args.output_dir)[-1]}/rng_state.pth", weights_only=False)
    assert torch.equal(saved["cpu"], trainer.after)
