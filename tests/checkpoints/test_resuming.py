"""Checkpoints: what is in them, going on from them, and what is refused."""

import math
import os
import shutil

import pytest
import torch
from torch.utils.data import DataLoader
from transformers.optimization import Adafactor, AdafactorSchedule

from mps_trainer import Trainer
from tests.conftest import assert_same_weights, callback, weights, without_times
from tests.tiny import tiny

from .conftest import names

EACH_STEP = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-2}

pytestmark = pytest.mark.every_device


@pytest.mark.parametrize("stop", [3, 5, 10])
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"optim": "sgd"}], ids=str)
def test_resumed_run_equals_one_that_was_never_interrupted(assert_resumes, stop, settings):
    # logs every 3 steps, so that a checkpoint lies between two logs; 5 batches of 8 make an epoch
    strategies = {"logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2, **EACH_STEP}
    assert_resumes(stop, max_steps=11, lr_scheduler_type="cosine", **strategies, **settings)


def test_resumed_run_whose_callback_changes_accumulation_goes_on_at_its_batch(assert_resumes):
    def raise_it(args, state, **_):
        args.gradient_accumulation_steps = 1 + int(state.epoch)

    assert_resumes(7, lambda: {"callbacks": [callback(on_epoch_begin=raise_it)]}, num_train_epochs=3, **EACH_STEP)


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_resumed_run_whose_callback_cuts_epochs_goes_on_with_the_next(assert_resumes, strategy):
    def cut(args, state, control, **_):
        control.should_epoch_stop = state.global_step % 2 == 0

    settings = {**EACH_STEP, "save_strategy": strategy, "num_train_epochs": 3}
    assert_resumes(2, lambda: {"callbacks": [callback(on_step_end=cut)]}, **settings)


class OwnLoader(Trainer):
    def get_train_dataloader(self):
        generator = torch.Generator().manual_seed(8)
        return DataLoader(self.train_dataset, 8, shuffle=True, collate_fn=self.data_collator, generator=generator)


@pytest.mark.parametrize("stop", [5, 7])
def test_resumed_run_whose_loader_draws_from_its_own_generator_has_its_order(assert_resumes, stop):
    assert_resumes(stop, lambda: {"kind": OwnLoader}, num_train_epochs=2, **EACH_STEP)


def test_resumed_run_with_schedule_of_adafactor_equals_one_that_was_never_interrupted(assert_resumes, make_model):
    def parts():
        model = make_model()
        optimizer = Adafactor(model.parameters(), relative_step=True, warmup_init=True)
        return {"model": model, "optimizers": (optimizer, AdafactorSchedule(optimizer))}

    assert_resumes(2, parts, max_steps=4, **EACH_STEP)


@pytest.mark.parametrize("steps", [7, 10])  # 5 make an epoch
def test_run_resumed_after_it_had_finished_does_nothing_more(make_trainer, trained, steps):
    settings = {"max_steps": steps, "save_strategy": "epoch", "eval_strategy": "epoch"}
    first = trained(**settings)
    again = make_trainer(**settings)
    assert again.train(resume_from_checkpoint=True).global_step == steps
    assert_same_weights(weights(first.model), weights(again.model))
    assert without_times(first.state.log_history) == without_times(again.state.log_history)


def scores(*values):
    remaining = iter(values)
    return lambda prediction: {"score": next(remaining)}


BEST = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "metric_for_best_model": "score"}


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "MixtralForCausalLM"])
def test_models_with_shared_weights_or_with_other_names_on_disk_resume(assert_resumes, kind):
    data = [{"input_ids": [1, 2 + i, 3], "labels": [1, 2 + i, 3]} for i in range(16)]
    experts = {"num_key_value_heads": 1, "num_local_experts": 2} if kind == "MixtralForCausalLM" else {}
    assert_resumes(2, lambda: {"model": tiny(kind, **experts), "train_dataset": data}, max_steps=4, **EACH_STEP)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_resume_at_the_end_of_an_epoch_does_what_was_still_due(assert_resumes, accumulation):
    # the checkpoint of the epoch's last step is written before the evaluation that ends the epoch
    settings = {"num_train_epochs": 2, "eval_strategy": "epoch", "gradient_accumulation_steps": accumulation}
    settings |= {"logging_strategy": "epoch", "lr_scheduler_type": "linear"}  # the log has the norm and the rate
    assert_resumes(5 if accumulation == 1 else 3, **settings, **EACH_STEP)


def test_overwriting_removes_the_earlier_runs_checkpoints_once_there_is_a_new_one(make_trainer):
    make_trainer(max_steps=8, save_strategy="steps", save_steps=4).train()
    again = make_trainer(max_steps=3, save_strategy="steps", save_steps=3, overwrite_output_dir=True)
    seen = []
    again.add_callback(callback(on_step_begin=lambda **_: seen.append(names(again))))
    again.train()
    assert seen[0] == ["checkpoint-4", "checkpoint-8"]
    assert names(again) == ["checkpoint-3"]


def test_best_checkpoint_is_never_an_earlier_runs(make_trainer, trained, caplog):
    make_trainer(max_steps=4, save_strategy="steps", save_steps=1).train()
    settings = {"max_steps": 4, "save_steps": 2, "load_best_model_at_end": True, **BEST}
    again = trained({"compute_metrics": scores(9.0, 1, 2, 3)}, **settings)
    assert again.state.best_global_step == 1  # evaluated, not saved; checkpoint-1 is the earlier run's
    assert again.state.best_model_checkpoint is None
    assert "the best evaluation, at step 1, has no checkpoint, so the last weights are kept. Give save" in caplog.text


def test_a_best_evaluation_without_a_checkpoint_is_a_warning(trained, caplog):
    settings = {"max_steps": 4, "save_steps": 2, "load_best_model_at_end": True, **BEST}
    run = trained({"compute_metrics": scores(1, 5, 9, 3)}, **settings)
    assert (run.state.best_global_step, os.path.basename(run.state.best_model_checkpoint)) == (3, "checkpoint-2")
    said = "the best evaluation, at step 3, has no checkpoint, so the weights of the best checkpoint, "
    assert said in caplog.text
    assert "checkpoint-2, are loaded. Give save_steps the value of eval_steps" in caplog.text


def test_a_best_checkpoint_whose_step_was_not_saved_is_loaded_without_a_warning(trained, caplog):
    settings = {"max_steps": 2, "save_steps": 1, "load_best_model_at_end": True, **BEST}
    run = trained({"compute_metrics": scores(9, 1)}, **settings)
    run.state.best_global_step = None  # early releases of transformers save none
    caplog.clear()
    run._mt_checkpoints.load_best(run.model, run.state, run._mt_processes)
    assert "load_best_model_at_end" not in caplog.text


def test_without_a_metric_that_is_a_number_there_is_no_best_and_the_warning_says_so(trained, caplog):
    given = {"compute_metrics": scores(math.nan, math.nan)}
    trained(given, max_steps=2, save_steps=1, load_best_model_at_end=True, **BEST)
    assert "load_best_model_at_end: no evaluation gave a number, so the last weights are kept." in caplog.text


def test_a_best_checkpoint_that_is_gone_does_not_end_the_run(trained, caplog):
    def lose(args, state, **_):
        if state.global_step == 4:
            shutil.rmtree(os.path.join(args.output_dir, "checkpoint-1"))

    given = {"compute_metrics": scores(9.0, 1, 2, 3), "callbacks": [callback(on_evaluate=lose)]}
    trainer = trained(given, max_steps=4, save_steps=1, load_best_model_at_end=True, **BEST)
    assert trainer.state.global_step == 4
    assert "checkpoint-1 is gone, so the last weights are kept." in caplog.text


def test_best_checkpoint_is_not_replaced_by_one_in_the_folder_that_a_run_goes_on_in(make_trainer, trained, tmp_path):
    for folder in ("run", "other"):
        settings = {"output_dir": str(tmp_path / folder), "max_steps": 2, **BEST, "save_steps": 1}
        make_trainer({"compute_metrics": scores(9.0, 1)}, **settings).train()
    again = trained({"compute_metrics": scores(2)}, resume=tmp_path / "other" / "checkpoint-2", max_steps=3, **BEST)
    assert again.state.best_model_checkpoint == str(tmp_path / "other" / "checkpoint-1")


@pytest.mark.parametrize("save_async", [True, False])
def test_later_steps_of_another_run_are_the_first_to_go(make_trainer, trained, tmp_path, save_async):
    settings = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2, "save_async": save_async}
    make_trainer(max_steps=8, **settings).train()  # leaves 6 and 8
    again = trained(resume=tmp_path / "run" / "checkpoint-6", max_steps=7, **{**settings, "save_steps": 1})
    assert names(again) == ["checkpoint-6", "checkpoint-7"]
