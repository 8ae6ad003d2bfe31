"""A run under `--restarts` or torchrun: what it notes, and where it goes on after a restart."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from mps_trainer import Trainer
from mps_trainer.checkpoints import folders, manifest
from mps_trainer.cli.supervisor import newest_checkpoint, read_end
from mps_trainer.data.split import UnsplittableBatchError
from mps_trainer.guards import supervised
from mps_trainer.guards.supervised import kind_of
from mps_trainer.launching.restarts import GPU, MEMORY, OTHER, VARIABLE, Progress, Restart, Supervision, decide
from tests.conftest import assert_same_weights, logged, weights

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
        self.restarts.append(decision)
        self.start()


@pytest.fixture
def supervisor(monkeypatch, tmp_path):
    (tmp_path / "notes").mkdir()
    made = Supervisor(monkeypatch, tmp_path / "notes")
    made.start()
    return made


def fail(trainer):
    with pytest.raises(RuntimeError):
        trainer.train()


@pytest.fixture
def whole(make_trainer, tmp_path, monkeypatch):
    """The weights of a run that nothing disturbs, which no supervisor started."""

    def train(trainer=None, **settings):
        with monkeypatch.context() as without:
            without.delenv(VARIABLE, raising=False)
            made = make_trainer(trainer, **{**SETTINGS, **settings}, output_dir=str(tmp_path / "whole"))
            made.train()
        return weights(made.model)

    return train


@pytest.mark.every_device
def test_restarted_run_goes_on_from_its_newest_checkpoint(make_trainer, supervisor, whole):
    fail(make_trainer({"callbacks": [Fails(5)]}, **SETTINGS))
    out = make_trainer(**SETTINGS).args.output_dir
    assert supervisor.end().progress == Progress(os.path.abspath(out), step=5, examples=8, was_empty=True)
    assert supervisor.end().error == GPU
    assert newest_checkpoint(os.path.abspath(out), "id:0") == f"{out}/checkpoint-4"
    supervisor.restart()
    again = make_trainer(**SETTINGS)
    again.train()
    assert len(logged(again, "loss")) == 8
    assert again._mt_supervised is None
    assert_same_weights(weights(again.model), whole())
    end = supervisor.end(0)
    assert (end.error, end.progress.in_training, end.progress.step) == ("", False, 8)
    assert decide(supervisor.end(1), supervisor.restarts, 9) == ""


def test_first_start_does_what_the_script_says(make_trainer, supervisor, monkeypatch):
    with monkeypatch.context() as without:
        without.delenv(VARIABLE)
        make_trainer(**SETTINGS).train()
    trainer = make_trainer(**SETTINGS)
    assert manifest.entry(f"{trainer.args.output_dir}/checkpoint-8", "run") is None
    trainer.train()
    assert trainer.state.log_history[0]["step"] == 1
    assert manifest.entry(f"{trainer.args.output_dir}/checkpoint-8", "run") == "id:0"


def test_checkpoints_of_another_run_are_left_alone(make_trainer, supervisor, monkeypatch, whole):
    with monkeypatch.context() as without:
        without.delenv(VARIABLE)
        make_trainer(**{**SETTINGS, "max_steps": 20}, learning_rate=1e-1).train()
    fail(make_trainer({"callbacks": [Fails(1)]}, **SETTINGS))
    supervisor.restart()
    assert not supervisor.restarts[0].progress.was_empty
    again = make_trainer(**SETTINGS)
    again.train()
    assert_same_weights(weights(again.model), whole())


def test_restart_without_a_checkpoint_resumes_what_the_script_says(make_trainer, supervisor, monkeypatch, whole):
    with monkeypatch.context() as without:
        without.delenv(VARIABLE)
        fail(make_trainer({"callbacks": [Fails(5)]}, **SETTINGS))
    with pytest.raises(RuntimeError):
        make_trainer({"callbacks": [Fails(5)]}, **SETTINGS).train(resume_from_checkpoint=True)
    supervisor.restart()
    again = make_trainer(**SETTINGS)
    again.train(resume_from_checkpoint=True)
    assert_same_weights(weights(again.model), whole())


def test_damaged_checkpoint_is_skipped(make_trainer, supervisor, caplog, whole):
    fail(make_trainer({"callbacks": [Fails(5)]}, **SETTINGS))
    supervisor.restart()
    again = make_trainer(**SETTINGS)
    with open(f"{again.args.output_dir}/checkpoint-4/model.safetensors", "r+b") as file:
        file.truncate(100)
    again.train()
    assert "checkpoint-4, which is damaged" in caplog.text
    assert_same_weights(weights(again.model), whole())


def test_each_call_of_train_has_its_own_checkpoints(make_trainer, supervisor):
    """Two calls train into one folder; the process dies in the second one."""

    def train(last_step=None):
        first = make_trainer(**SETTINGS)
        first.train()
        second = make_trainer(
            {"model": first.model, "callbacks": [Fails(last_step)] if last_step else []},
            **SETTINGS,
            learning_rate=1e-1,
        )
        second.train()
        return weights(second.model)

    with pytest.raises(RuntimeError):
        train(5)
    assert supervisor.end().progress.call == 1
    supervisor.restart()
    found = train()
    out = make_trainer().args.output_dir
    assert {manifest.entry(folder, "run") for folder in folders.find_checkpoints(out)} >= {"id:1"}
    supervisor.restarts.clear()
    supervisor.start()
    assert_same_weights(found, train())


def test_restart_counts_evaluations_of_early_stopping(make_trainer, supervisor):
    settings = {
        **SETTINGS, "max_steps": 12, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "score",
        "load_best_model_at_end": True,
    }  # fmt: skip

    def trainer(*more):
        given = {"compute_metrics": lambda prediction: {"score": 1.0}}
        return make_trainer({**given, "callbacks": [EarlyStoppingCallback(3), *more]}, **settings)

    fail(trainer(Fails(7)))
    supervisor.restart()
    again = trainer()
    again.train()
    assert again.state.global_step == 8  # the best at 2, and three that are no better


def test_memory_halves_what_is_trained_on_at_a_time(make_trainer, make_model, supervisor, whole):
    sizes = []

    class Counts(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            sizes.append(len(inputs["labels"]))
            return super().training_step(model, inputs, num_items_in_batch)

    def trainer(*callbacks):
        given = {"kind": Counts, "model": make_model(dropout=0.0), "callbacks": list(callbacks)}
        return make_trainer(given, **SETTINGS)

    fail(trainer(Fails(3, NO_MEMORY)))
    supervisor.restart()
    assert supervisor.restarts[0].examples == 4
    sizes.clear()
    fail(trainer(Fails(5)))  # another fault: it stays so
    assert set(sizes) == {4}
    supervisor.restart()
    sizes.clear()
    again = trainer()
    again.train()
    assert (set(sizes), len(sizes)) == ({4}, 2 * 4)
    assert again.args.auto_find_batch_size is False
    torch.testing.assert_close(weights(again.model), whole({"model": make_model(dropout=0.0)}), rtol=0, atol=1e-5)


def test_batch_that_cannot_be_split_stays_whole(make_trainer, supervisor, caplog, whole):
    class Packed(Trainer):
        def split_batch(self, batch, most):
            raise UnsplittableBatchError("it is packed")

    fail(make_trainer({"kind": Packed, "callbacks": [Fails(3, NO_MEMORY)]}, **SETTINGS))
    supervisor.restart()
    again = make_trainer({"kind": Packed}, **SETTINGS)
    again.train()
    assert caplog.text.count("stays whole") == 1
    assert_same_weights(weights(again.model), whole())


def test_record_and_page_show_each_restart(make_trainer, supervisor):
    settings = {**SETTINGS, "report": True}
    fail(make_trainer({"callbacks": [Fails(1)]}, **settings))
    supervisor.restart()
    fail(make_trainer({"callbacks": [Fails(5, NO_MEMORY)]}, **settings))
    supervisor.restart()
    trainer = make_trainer(**settings)
    trainer.train()
    with open(f"{trainer.args.output_dir}/run_record.json") as file:
        events = [event for event in json.load(file)["events"] if event["kind"] == "restart"]
    assert [event["step"] for event in events] == [1, 5]
    for event, said in zip(
        events, ("died of a GPU fault after step 1", "ran out of memory after step 5"), strict=True
    ):
        assert event["text"].endswith(f": the run {said}")
        with open(f"{trainer.args.output_dir}/report.html") as page:
            assert f"restarted {event['text']}" in page.read()


def test_progress_is_noted_at_steps_and_batches_of_evaluations(make_trainer, supervisor, monkeypatch):
    noted = []
    monkeypatch.setattr(supervised.SupervisedRun, "note", lambda self, step, examples: noted.append(step))
    trainer = make_trainer(max_steps=2, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8)
    trainer.train()
    assert noted == [0, 1, 1, 1, 1, 2, 2, 2, 2]  # 24 examples are evaluated after each step
    trainer.evaluate()
    assert len(noted) == 9


def test_torchrun_resumes_as_well(make_trainer, monkeypatch, whole):
    for name, value in {"RUN_ID": "none", "RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setattr(supervised, "_calls", Counter())
    fail(make_trainer({"callbacks": [Fails(5)]}, **SETTINGS))
    monkeypatch.setattr(supervised, "_calls", Counter())
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = make_trainer({"callbacks": [Fails(3)]}, **SETTINGS)  # a step that is done
    again.train()
    for name in ("RUN_ID", "RESTART_COUNT"):
        monkeypatch.delenv(f"TORCHELASTIC_{name}")
    assert_same_weights(weights(again.model), whole())


def chained(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError(GPU_FAULT), GPU),
        (RuntimeError(NO_MEMORY), MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory."), MEMORY),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GiB)"), MEMORY),
        (MemoryError(), MEMORY),
        (chained(ValueError("a step failed"), RuntimeError(GPU_FAULT)), GPU),
        (ValueError(GPU_FAULT), OTHER),
        (RuntimeError("shapes cannot be multiplied"), OTHER),
        (KeyboardInterrupt(), OTHER),
    ],
)
def test_kinds_of_errors(error, kind):
    assert kind_of(error) == kind
