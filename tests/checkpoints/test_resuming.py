"""Checkpoints: what is in them, going on from them, and what is refused."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from mps_trainer.checkpoints.folders import find_checkpoints
from tests.conftest import assert_same_weights, callback, weights
from tests.tiny import tiny

FILES = {
    "loop_state.json",
    "model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "trainer_state.json",
    "training_args.bin",
}
MANIFEST = "manifest.json"

pytestmark = pytest.mark.every_device


def without_times(history):
    return [
        {name: value for name, value in entry.items() if not name.endswith(("runtime", "per_second"))}
        for entry in history
    ]


def names(trainer):
    return [os.path.basename(path) for path in find_checkpoints(trainer.args.output_dir)]


def test_checkpoint_has_transformers_files(make_trainer):
    trainer = make_trainer(max_steps=4, save_strategy="steps", save_steps=2)
    trainer.train()
    assert names(trainer) == ["checkpoint-2", "checkpoint-4"]
    assert set(os.listdir(os.path.join(trainer.args.output_dir, "checkpoint-4"))) == {*FILES, MANIFEST}
    saved = torch.load(os.path.join(trainer.args.output_dir, "checkpoint-2", "training_args.bin"), weights_only=False)
    assert saved == trainer.args


@pytest.mark.parametrize("stop", [3, 5, 10])
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"optim": "sgd"}], ids=str)
def test_resumed_run_equals_one_that_was_never_interrupted(make_trainer, make_model, tmp_path, stop, settings):
    # logs every 3 steps, so that a checkpoint lies between two logs; 5 batches of 8 make an epoch
    settings = {
        "max_steps": 11,
        "logging_steps": 3,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "cosine",
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 1,
        **settings,
    }
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    other_weights = make_model()
    nn.init.ones_(other_weights.head.weight)
    resumed = make_trainer({"model": other_weights}, output_dir=str(tmp_path / "resumed"), **settings)
    torch.manual_seed(99)  # whatever happened before
    np.random.seed(99)
    result = resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{stop}"))
    assert result.global_step == 11
    assert_same_weights(weights(whole.model), weights(resumed.model))
    assert without_times(whole.state.log_history) == without_times(resumed.state.log_history)


def test_a_checkpoint_of_version_0_1_with_the_position_among_the_generators_is_resumed(make_trainer, tmp_path):
    settings = {"max_steps": 7, "logging_steps": 4, "save_strategy": "steps", "save_steps": 1}
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    folder = tmp_path / "whole" / "checkpoint-3"
    [position] = json.loads((folder / "loop_state.json").read_text())["processes"]
    saved = torch.load(folder / "rng_state.pth", weights_only=False)
    torch.save({**saved, "loop": position}, folder / "rng_state.pth")
    (folder / "loop_state.json").unlink()
    (folder / MANIFEST).unlink()
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), **settings)
    resumed.train(resume_from_checkpoint=str(folder))
    assert_same_weights(weights(whole.model), weights(resumed.model))
    assert without_times(whole.state.log_history) == without_times(resumed.state.log_history)


@pytest.mark.parametrize("steps", [7, 10])  # 5 make an epoch
def test_run_resumed_after_it_had_finished_does_nothing_more(make_trainer, steps):
    settings = {"max_steps": steps, "save_strategy": "epoch", "eval_strategy": "epoch"}
    first = make_trainer(**settings)
    first.train()
    again = make_trainer(**settings)
    assert again.train(resume_from_checkpoint=True).global_step == steps
    assert_same_weights(weights(first.model), weights(again.model))
    assert without_times(first.state.log_history) == without_times(again.state.log_history)


def scores(*values):
    remaining = iter(values)
    return lambda prediction: {"score": next(remaining)}


BEST = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "metric_for_best_model": "score"}


def test_limit_keeps_the_newest_and_the_best_which_is_loaded_at_the_end(make_trainer):
    seen = []
    keep = callback(on_save=lambda model, **_: seen.append(weights(model)))
    settings = {"max_steps": 5, "save_steps": 1, "save_total_limit": 2, "load_best_model_at_end": True, **BEST}
    trainer = make_trainer({"compute_metrics": scores(9.0, 8, 7, 6, 5), "callbacks": [keep]}, **settings)
    trainer.train()
    assert_same_weights(weights(trainer.model), seen[0])
    assert names(trainer) == ["checkpoint-1", "checkpoint-5"]
    assert trainer.state.best_model_checkpoint == os.path.join(trainer.args.output_dir, "checkpoint-1")
    assert trainer.state.best_metric == 9.0


def test_best_strategy_saves_only_improvements(make_trainer):
    settings = {**BEST, "save_strategy": "best", "max_steps": 4}
    trainer = make_trainer({"compute_metrics": scores(1.0, 3.0, 2.0, 4.0)}, **settings)
    trainer.train()
    assert names(trainer) == ["checkpoint-1", "checkpoint-2", "checkpoint-4"]


@pytest.mark.parametrize("save_async", [True, False])
def test_saving_only_the_model_leaves_the_rest_out(make_trainer, save_async):
    trainer = make_trainer(
        max_steps=1, save_strategy="steps", save_only_model=True, save_async=save_async, save_steps=1
    )
    trainer.train()
    files = set(os.listdir(os.path.join(trainer.args.output_dir, "checkpoint-1")))
    assert files == {"model.safetensors", "trainer_state.json", "training_args.bin", MANIFEST}


def test_weights_shared_by_two_layers_are_saved_once_and_resume(make_trainer, tmp_path):
    tokens = torch.randint(0, 50, (16, 6), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    whole = make_trainer({"model": tiny("BertForMaskedLM"), "train_dataset": data}, **settings)
    whole.train()
    shutil.rmtree(os.path.join(whole.args.output_dir, "checkpoint-4"))
    resumed = make_trainer({"model": tiny("BertForMaskedLM"), "train_dataset": data}, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert_same_weights(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_resume_at_the_end_of_an_epoch_does_what_was_still_due(make_trainer, tmp_path, accumulation):
    # the checkpoint of the epoch's last step is written before the evaluation that ends the epoch
    settings = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "steps", "learning_rate": 1e-2}
    settings |= {"logging_strategy": "epoch", "lr_scheduler_type": "linear"}  # the log has the norm and the rate
    settings |= {"gradient_accumulation_steps": accumulation, "save_steps": 5 if accumulation == 1 else 3}
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{settings['save_steps']}"))
    assert_same_weights(weights(whole.model), weights(resumed.model))
    assert without_times(whole.state.log_history) == without_times(resumed.state.log_history)


def test_overwriting_removes_the_earlier_runs_checkpoints_once_there_is_a_new_one(make_trainer):
    make_trainer(max_steps=8, save_strategy="steps", save_steps=4).train()
    again = make_trainer(max_steps=3, save_strategy="steps", save_steps=3, overwrite_output_dir=True)
    seen = []
    again.add_callback(callback(on_step_begin=lambda **_: seen.append(names(again))))
    again.train()
    assert seen[0] == ["checkpoint-4", "checkpoint-8"]
    assert names(again) == ["checkpoint-3"]


def test_limit_removes_an_earlier_runs_checkpoints_before_a_new_one(make_trainer):
    make_trainer(max_steps=8, save_strategy="steps", save_steps=4).train()
    again = make_trainer(max_steps=2, save_strategy="steps", save_steps=1, save_total_limit=2)
    again.train()
    assert names(again) == ["checkpoint-1", "checkpoint-2"]


def test_best_checkpoint_is_never_an_earlier_runs(make_trainer, caplog):
    make_trainer(max_steps=4, save_strategy="steps", save_steps=1).train()
    settings = {"max_steps": 4, "save_steps": 2, "load_best_model_at_end": True, **BEST}
    again = make_trainer({"compute_metrics": scores(9.0, 1, 2, 3)}, **settings)
    again.train()
    assert again.state.best_global_step == 1  # evaluated, not saved; checkpoint-1 is the earlier run's
    assert again.state.best_model_checkpoint is None
    assert "the best evaluation, at step 1, has no checkpoint, so the last weights are kept. Give save" in caplog.text


def test_metric_that_is_not_a_number_is_not_the_best(make_trainer):
    trainer = make_trainer({"compute_metrics": scores(float("nan"), 1.0, 2.0)}, max_steps=3, save_steps=1, **BEST)
    trainer.train()
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (2.0, 3)


def test_model_whose_names_on_disk_differ_resumes(make_trainer, tmp_path):
    def make():
        return tiny("MixtralForCausalLM", num_key_value_heads=1, num_local_experts=2)

    data = [{"input_ids": [1, 2 + i, 3], "labels": [1, 2 + i, 3]} for i in range(16)]
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-2}
    whole = make_trainer({"model": make(), "train_dataset": data}, output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make_trainer({"model": make(), "train_dataset": data}, output_dir=str(tmp_path / "again"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert_same_weights(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize("save_async", [True, False])
def test_later_steps_of_another_run_are_the_first_to_go(make_trainer, tmp_path, save_async):
    settings = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2, "save_async": save_async}
    make_trainer(max_steps=8, **settings).train()  # leaves 6 and 8
    again = make_trainer(max_steps=7, **{**settings, "save_steps": 1})
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-6"))
    assert names(again) == ["checkpoint-6", "checkpoint-7"]
