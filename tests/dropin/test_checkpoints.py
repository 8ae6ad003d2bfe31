"""A run begun with transformers' Trainer resumes with this one, and the other way round."""

import dataclasses
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState

import mps_trainer
from tests.conftest import callback

from .conftest import (
    CHECKPOINTING,
    Library,
    assert_close_weights,
    assert_same,
    bert_classifier,
    gpt2,
    sentences,
    texts,
)

STEPS = {"save_strategy": "steps", "save_steps": 2, "max_steps": 7}
SETTINGS = {
    "within an epoch": {},
    "at the end of an epoch": {"save_steps": 3},
    "plain optimizer": {"optim": "adamw_torch"},
    "sgd": {"optim": "sgd", "learning_rate": 0.1},
    "adafactor": {"optim": "adafactor"},
    "bfloat16": {"bf16": True},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
    "activation checkpointing": {CHECKPOINTING: True},
    "data not skipped": {"ignore_data_skip": True},
    "tied weights and accumulation": {
        "model": gpt2, "train_dataset": texts(), "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 3,
    },
}  # fmt: skip


def trained(library, resume=None, model=bert_classifier, **settings):
    return library.trained(model(), resume=resume, **{**STEPS, **settings})


def assert_resumes_in_the_other(both, tmp_path, **settings):
    step = settings.get("save_steps", 2)

    def whole(library):
        trainer = trained(library, **settings)
        shutil.copytree(library.folder / f"checkpoint-{step}", tmp_path / f"from-{library.module.__name__}")
        return trainer

    def resumed(library):
        source = tmp_path / ("from-transformers" if library.is_ours else "from-mps_trainer")
        return trained(library, source, **settings)

    uninterrupted, _ = both(whole)
    logs = uninterrupted.state.log_history
    for trainer in both(resumed):
        if not settings.get("ignore_data_skip"):  # other data, other losses
            assert_same(trainer.state.log_history[:-1], logs[:-1], resumed=True)
            assert_close_weights(trainer, uninterrupted)
        assert [entry["step"] for entry in trainer.state.log_history] == [entry["step"] for entry in logs]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_run_begun_in_one_library_resumes_in_the_other(both, tmp_path, settings):
    assert_resumes_in_the_other(both, tmp_path, **settings)


@pytest.mark.parametrize("changed", [{"include_num_input_tokens_seen": "all"}, {"data_seed": 9}], ids=str)
def test_resumed_run_logs_what_it_logs_in_transformers(assert_same_runs, changed):
    def run(library):
        trained(library, max_steps=4)
        trainer = trained(library, library.folder / "checkpoint-2", **changed)
        trainer.state.log_history[-1].pop("train_loss")  # it is of the whole run here, of its last part there
        return trainer.state.log_history[2:]

    assert_same_runs(run)


def test_checkpoint_has_files_and_states_of_transformers(both):
    def run(library):
        trained(library, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True)
        folder = library.folder / "checkpoint-4"
        state = json.loads((folder / "trainer_state.json").read_text())
        return {path.name for path in folder.iterdir()}, state, folder

    theirs, ours = both(run)
    assert ours[0] == theirs[0] | {"loop_state.json", "manifest.json"}
    assert ours[1].keys() == theirs[1].keys()
    assert ours[1]["stateful_callbacks"].keys() == theirs[1]["stateful_callbacks"].keys()
    for name in ("epoch", "global_step", "max_steps", "save_steps", "train_batch_size", "best_global_step"):
        assert ours[1][name] == theirs[1][name], name
    mine, other = (torch.load(folder / "optimizer.pt", weights_only=True) for folder in (ours[2], theirs[2]))
    assert mine.keys() == other.keys()
    assert [list(group) for group in mine["param_groups"]] == [list(group) for group in other["param_groups"]]
    mine, other = (torch.load(folder / "scheduler.pt", weights_only=True) for folder in (ours[2], theirs[2]))
    assert mine == other


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize(
    "callbacks", [[], [callback(on_save=dict)]], ids=["", "heard"]
)  # training waits if it is heard
def test_save_total_limit_keeps_same_checkpoints(assert_same_runs, limit, callbacks):
    def run(library):
        trainer = trained(
            library, callbacks=callbacks, save_total_limit=limit, save_steps=1, eval_strategy="steps", eval_steps=1,
            load_best_model_at_end=True, learning_rate=1e-2,
        )  # fmt: skip
        best = Path(trainer.state.best_model_checkpoint).name
        return sorted(path.name for path in library.folder.glob("checkpoint-*")), best

    assert assert_same_runs(run)[1] == "checkpoint-1"


def tracker(sent):
    """Returns a callback that keeps output_dir in all forms of the arguments, and the path of the best checkpoint."""

    def begin(args, **_):
        paths = (args.to_dict(), args.to_sanitized_dict(), json.loads(args.to_json_string()))
        sent.append([args.output_dir, *(values["output_dir"] for values in paths)])

    return callback(
        on_train_begin=begin,
        on_save=lambda args, state, **_: sent.append([args.output_dir, state.best_model_checkpoint]),
    )


@pytest.mark.parametrize("output_dir", ["out", "./out/", "deep/out", "."])
def test_relative_output_dir_stays_as_given(assert_same_runs, monkeypatch, output_dir):
    best = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True}

    def run(library):
        library.folder.mkdir()
        monkeypatch.chdir(library.folder)
        sent = []
        relative = dataclasses.replace(library, folder=output_dir)
        trainer = trained(relative, max_steps=2, callbacks=[tracker(sent)], **best)
        saved = json.loads((library.folder / output_dir / "checkpoint-2" / "trainer_state.json").read_text())
        again = trained(relative, os.path.join(output_dir, "checkpoint-1"), max_steps=2)
        paths = (trainer.args.output_dir, saved["best_model_checkpoint"], again.state.best_model_checkpoint)
        return sent, trainer.state.best_model_checkpoint, paths

    assert assert_same_runs(run)[0][0] == [output_dir] * 4


def test_changed_arguments_are_logged_on_resume(both, caplog):
    def run(library):
        logger = logging.getLogger("transformers")
        trained(library, max_steps=2)
        caplog.clear()
        logger.addHandler(caplog.handler)
        try:
            trained(library, library.folder / "checkpoint-2", logging_steps=3 if library.is_ours else 4)
        finally:
            logger.removeHandler(caplog.handler)
        return "logging_steps" in caplog.text

    assert both(run) == (True, True)


class Counter(TrainerCallback, ExportableState):
    def __init__(self, start: int = 0):
        self.start = start
        self.steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def state(self):
        return {"args": {"start": self.start}, "attributes": {"steps": self.steps}}


def counted(library, callbacks, restore):
    """Returns the counts of the counters after a run of five steps that was resumed at the second."""
    steps = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    trained(library, callbacks=callbacks(), **steps, max_steps=2)
    again = trained(
        library, True, callbacks=callbacks(), **steps, max_steps=5, restore_callback_states_from_checkpoint=restore
    )
    return [(part.start, part.steps) for part in again.callback_handler.callbacks if type(part) is Counter]


def test_load_callback_state_is_called_and_works_outside_of_a_run(both):
    def run(library):
        loads = []

        class Own(library.module.Trainer):
            def _load_callback_state(self):
                super()._load_callback_state()
                loads.append((self.state.global_step, self.control.should_training_stop))

        trained(library, max_steps=2)
        checkpoint = library.folder / "checkpoint-2"
        settings = {"kind": Own, "max_steps": 2, "restore_callback_states_from_checkpoint": True}
        idle = library.trainer(**settings)
        idle.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        idle._load_callback_state()
        trained(library, checkpoint, **settings)
        return loads

    assert both(run) == ([(2, True), (2, True)],) * 2


@pytest.mark.parametrize("restore", [True, False])
def test_callback_state_is_restored_if_asked(assert_same_runs, restore):
    found = assert_same_runs(lambda library: counted(library, lambda: [Counter(5), EarlyStoppingCallback(5)], restore))
    assert found == [(5, 5 if restore else 3)]


def test_callbacks_of_one_class_restore_separate_states(tmp_path):
    # transformers restores the states that they had before the first step.
    library = Library(mps_trainer, tmp_path)
    assert counted(library, lambda: [Counter(5), Counter(7)], True) == [(5, 5), (7, 5)]


def test_missing_checkpoint_is_error_of_transformers(assert_same_runs):
    def run(library):
        trainer = library.trainer(max_steps=1)
        messages = []
        for source in (True, str(library.folder / "checkpoint-9")):
            with pytest.raises((ValueError, OSError)) as caught:
                trainer.train(resume_from_checkpoint=source)
            messages.append(str(caught.value).split("(")[0].split(str(library.folder))[0])
        return messages

    assert_same_runs(run)


@pytest.mark.parametrize("strategy", ["random", "batch_rebalance"])
def test_batch_size_found_by_transformers_is_used_and_shown(both, tmp_path, capfd, strategy):
    def run(library):
        sizes, limit = [], 100 if library.is_ours else 6

        def take_memory(module, args, kwargs):
            sizes.append(len(kwargs["input_ids"]))
            if sizes[-1] > limit:
                raise RuntimeError("CUDA out of memory.")

        settings = {"auto_find_batch_size": True, "per_device_train_batch_size": 9, "max_steps": 7, "save_steps": 2}
        settings |= {"save_strategy": "steps", "train_sampling_strategy": strategy if library.is_ours else "random"}
        rows = [{**row, "length": 8} for row in sentences()]
        trainer = library.trainer(train_dataset=rows, disable_tqdm=not library.is_ours, **settings)
        trainer.model.register_forward_pre_hook(take_memory, with_kwargs=True)
        source = str(tmp_path / "transformers" / "checkpoint-2") if library.is_ours else None
        trainer.train(resume_from_checkpoint=source)
        return sizes, trainer.get_total_train_batch_size(trainer.args)

    (begun, _), (sizes, batch) = both(run)
    assert begun[-1] == batch == 6
    assert set(sizes) == {6}
    lines = capfd.readouterr().out.splitlines()
    assert "  6 examples in a step" in lines
    assert "  7 steps, 1.75 epochs of 24 examples" in lines
