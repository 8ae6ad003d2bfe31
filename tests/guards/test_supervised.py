"""A run under `--restarts` or torchrun: what it notes, and where it goes on after a restart."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from mps_trainer import Trainer
from mps_trainer.checkpoints import folders, manifest
from mps_trainer.cli.supervisor import _hold_open, newest_checkpoint, read_end
from mps_trainer.errors import explanation_of
from mps_trainer.guards import supervised
from mps_trainer.guards.supervised import kind_of
from mps_trainer.launching.restarts import ALIVE, GPU, MEMORY, OTHER, VARIABLE, Progress, Restart, Supervision, decide
from tests.conftest import assert_same_weights, callback, logged, messages_with, weights

GPU_FAULT = "MPS command buffer execution failed: Caused GPU Timeout Error"
NO_MEMORY = "MPS command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallback...)"
SETTINGS = {"max_steps": 8, "save_strategy": "steps", "save_steps": 2, "save_async": False}


class Fails(TrainerCallback):
    def __init__(self, step, message=GPU_FAULT):
        self.step, self.message = step, message

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise RuntimeError(self.message)


class Supervisor:
    """Starts what stands for a process: one that counts its calls of train() anew."""

    def __init__(self, monkeypatch, notes):
        self.monkeypatch, self.notes, self.restarts = monkeypatch, notes, []

    def start(self):
        self.monkeypatch.setattr(supervised, "_calls", Counter())
        for note in self.notes.iterdir():
            note.unlink()
        supervision = Supervision("id", tuple(self.restarts), str(self.notes))
        self.monkeypatch.setenv(VARIABLE, supervision.variables()[VARIABLE])

    def end(self, status=1):
        return read_end(status, str(self.notes))

    def restart(self, status=1):
        decision = decide(self.end(status), self.restarts, 9)
        assert isinstance(decision, Restart), decision
        checkpoint = newest_checkpoint(decision.progress.folder, f"id:{decision.progress.call}")
        self.restarts.append(dataclasses.replace(decision, checkpoint=checkpoint))
        self.start()


@pytest.fixture
def supervisor(monkeypatch, tmp_path):
    (tmp_path / "notes").mkdir()
    made = Supervisor(monkeypatch, tmp_path / "notes")
    made.start()
    return made


@pytest.fixture
def train(make_trainer, monkeypatch):
    """`train(fails_at, ...)` trains, under the supervisor unless told otherwise, and returns the trainer."""

    def run(fails_at=None, message=GPU_FAULT, trainer=None, supervised=True, resume=None, **settings):
        given = {"callbacks": [] if fails_at is None else [Fails(fails_at, message)], **(trainer or {})}
        with monkeypatch.context() as patch:
            if not supervised:
                patch.delenv(VARIABLE, raising=False)
            made = make_trainer(given, **{**SETTINGS, **settings})
            with contextlib.nullcontext() if fails_at is None else pytest.raises(RuntimeError):
                made.train(resume_from_checkpoint=resume)
        return made

    return run


def runs_of(folder):
    return {manifest.entry(path, "run") for path in folders.find_checkpoints(folder)}


@pytest.fixture
def whole(train, tmp_path):
    """The weights of a run that nothing disturbs, which no supervisor started."""

    def run(trainer=None):
        return weights(train(trainer=trainer, supervised=False, output_dir=str(tmp_path / "whole")).model)

    return run


@pytest.mark.every_device
def test_restarted_run_goes_on_from_its_newest_checkpoint(train, supervisor, whole):
    out = os.path.abspath(train(5).args.output_dir)
    assert supervisor.end().progress == Progress(out, step=5, examples=8, was_empty=True)
    assert supervisor.end().error == GPU
    assert newest_checkpoint(out, "id:0") == f"{out}/checkpoint-4"
    supervisor.restart()
    again = train()
    assert len(logged(again, "loss")) == 8
    assert_same_weights(weights(again.model), whole())
    end = supervisor.end(0)
    assert (end.error, end.progress.in_training, end.progress.step) == ("", False, 8)
    assert decide(supervisor.end(1), supervisor.restarts, 9) == ""


def test_checkpoints_of_another_run_are_left_alone(train, supervisor, whole):
    out = train(supervised=False, max_steps=20, learning_rate=1e-1).args.output_dir
    assert runs_of(out) == {None}
    train(1)  # the first start does what the script says: a resumed run would not fail at step 1
    supervisor.restart()
    assert not supervisor.restarts[0].progress.was_empty
    assert_same_weights(weights(train().model), whole())
    assert "id:0" in runs_of(out)


def test_restart_without_a_checkpoint_resumes_what_the_script_says(train, supervisor, whole):
    train(5, supervised=False)
    train(5, resume=True)
    supervisor.restart()
    assert_same_weights(weights(train(resume=True).model), whole())


def test_damaged_checkpoint_is_skipped(train, supervisor, caplog, whole):
    out = train(5).args.output_dir
    supervisor.restart()
    with open(f"{out}/checkpoint-4/model.safetensors", "r+b") as file:
        file.truncate(100)
    again = train()
    assert "checkpoint-4, which is damaged" in caplog.text
    assert_same_weights(weights(again.model), whole())


@pytest.mark.parametrize("moves", [True, False])
def test_restart_says_that_the_script_has_another_folder_or_empties_it(train, supervisor, caplog, tmp_path, moves):
    out = train(5).args.output_dir
    supervisor.restart()
    os.rename(out, tmp_path / "kept")
    train(output_dir=str(tmp_path / "later") if moves else out)
    assert re.search("does not go on from .*checkpoint-4, which", caplog.text)


@pytest.mark.parametrize("limit", [{}, {"save_total_limit": 1}], ids=str)
def test_each_call_of_train_has_its_own_checkpoints(train, supervisor, caplog, limit):
    """Two calls train into one folder; the process dies in the second one."""

    def twice(last_step=None):
        return train(last_step, trainer={"model": train(**limit).model}, learning_rate=1e-1, **limit)

    twice(5)
    assert supervisor.end().progress.call == 1
    supervisor.restart()
    found = twice()
    assert runs_of(found.args.output_dir) >= {"id:1"}
    assert "does not go on from" not in caplog.text  # the first call begins anew, as it should
    supervisor.restarts.clear()
    supervisor.start()
    assert_same_weights(weights(found.model), weights(twice().model))


def test_restart_counts_evaluations_of_early_stopping(train, supervisor):
    settings = {
        "max_steps": 12, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "score",
        "load_best_model_at_end": True,
    }  # fmt: skip

    def run(*fails):
        callbacks = [EarlyStoppingCallback(3), *map(Fails, fails)]
        given = {"compute_metrics": lambda prediction: {"score": 1.0}, "callbacks": callbacks}
        return train(*fails, trainer=given, **settings)

    run(7)
    supervisor.restart()
    assert run().state.global_step == 8  # the best at 2, and three that are no better
    supervisor.restart(-signal.SIGABRT)  # after training
    assert run().state.global_step == 8


def test_memory_halves_what_is_trained_on_at_a_time(train, make_model, supervisor, whole):
    sizes = []

    class Counts(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            sizes.append(len(inputs["labels"]))
            return super().training_step(model, inputs, num_items_in_batch)

    def run(*fails):
        sizes.clear()
        return train(*fails, trainer={"kind": Counts, "model": make_model(dropout=0.0)})

    run(3, NO_MEMORY)
    supervisor.restart()
    assert supervisor.restarts[0].examples == 4
    run(5)  # another fault: it stays so
    assert set(sizes) == {4}
    supervisor.restart()
    again = run()
    assert (set(sizes), len(sizes)) == ({4}, 2 * 4)
    assert again.args.auto_find_batch_size is False
    torch.testing.assert_close(weights(again.model), whole({"model": make_model(dropout=0.0)}), rtol=0, atol=1e-5)


def test_run_closes_the_pipe_to_its_supervisor_at_its_end(train, supervisor):
    with contextlib.ExitStack() as pipe:
        _hold_open(supervisor.notes / ALIVE, pipe)
        train()
    with pytest.raises(OSError, match="No such device or address"):  # nobody reads it
        os.open(supervisor.notes / ALIVE, os.O_WRONLY | os.O_NONBLOCK)


def test_run_saves_and_ends_once_its_supervisor_is_killed(train, supervisor, caplog, tmp_path):
    pipe = contextlib.ExitStack()
    _hold_open(supervisor.notes / ALIVE, pipe)
    at_3 = callback(on_step_end=lambda state, **_: pipe.close() if state.global_step == 3 else None)
    with pytest.raises(SystemExit) as ended:
        train(trainer={"callbacks": [at_3]})
    assert ended.value.code == 143
    assert (tmp_path / "run" / "checkpoint-3").exists() or (tmp_path / "run" / "checkpoint-4").exists()
    assert len(messages_with(caplog, "would restart this run was killed")) == 1


def test_run_goes_on_in_the_background_once_its_supervisor_has_ended(train, supervisor, caplog):
    pipe = contextlib.ExitStack()
    _hold_open(supervisor.notes / ALIVE, pipe)

    def end(state, **_):
        if state.global_step == 3:
            shutil.rmtree(supervisor.notes)
            pipe.close()

    assert train(trainer={"callbacks": [callback(on_step_end=end)]}).state.global_step == 8
    assert caplog.messages == []


def test_run_in_the_background_begins_after_its_supervisor_has_ended(train, supervisor, caplog):
    shutil.rmtree(supervisor.notes)
    assert train().state.global_step == 8
    assert len(messages_with(caplog, "into the background. This run does not start again")) == 1


def test_record_and_page_show_each_restart(train, supervisor):
    for fault in ((1, GPU_FAULT), (5, NO_MEMORY)):
        train(*fault, report=True)
        supervisor.restart()
    out = Path(train(report=True).args.output_dir)
    record = json.loads((out / "run_record.json").read_text())
    events = [event for event in record["events"] if event["kind"] == "restart"]
    page = (out / "report.html").read_text()
    said = {1: "the run died of a GPU fault after step 1", 5: "the run ran out of memory after step 5"}
    assert [event["step"] for event in events] == list(said)
    for event in events:
        assert event["text"].endswith(f": {said[event['step']]}")
        assert f"restarted {event['text']}" in page


def test_progress_is_noted_at_steps_and_batches_of_evaluations(make_trainer, supervisor, monkeypatch):
    noted = []
    monkeypatch.setattr(supervised.SupervisedRun, "note", lambda self, step, examples: noted.append(step))
    trainer = make_trainer(max_steps=2, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8)
    trainer.train()
    assert noted == [0, 1, 1, 1, 1, 2, 2, 2, 2]  # 24 examples are evaluated after each step
    trainer.evaluate()
    assert len(noted) == 9


@pytest.mark.every_device
@pytest.mark.parametrize(
    ("message", "says"),
    [
        (GPU_FAULT, r"not trusted, and they were not saved\. Use a smaller .*checkpoint-2\.$"),
        ("MPS backend is busy", "^The callback Fails failed at on_step_end"),
    ],
)
def test_the_weights_are_not_trusted_after_a_fault_of_the_gpu(make_trainer, message, says):
    with pytest.raises(RuntimeError) as raised:
        make_trainer({"callbacks": [Fails(3, message)]}, **SETTINGS).train()
    assert re.search(says, explanation_of(raised.value))


FAILED_STEP = ValueError("a step failed")
FAILED_STEP.__cause__ = RuntimeError(GPU_FAULT)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), MEMORY),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GiB)"), MEMORY),
        (MemoryError(), MEMORY),
        (FAILED_STEP, GPU),
        (ValueError(GPU_FAULT), OTHER),
        (RuntimeError("shapes cannot be multiplied"), OTHER),
        (KeyboardInterrupt(), OTHER),
    ],
)
def test_kinds_of_errors(error, kind):
    assert kind_of(error) == kind
