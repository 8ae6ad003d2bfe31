"""Methods of the Trainer that scripts and subclasses call by themselves, one at a time."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback

from mps_trainer import Trainer
from mps_trainer.loop.run import TrainingRun
from mps_trainer.search import backends
from tests.conftest import assert_same_weights, examples, logged, weights


def of_search(name: str):
    return SimpleNamespace(value=name)


@pytest.fixture
def searching(make_trainer):
    """A Trainer in the middle of a search."""

    def make(name: str, **settings):
        trainer = make_trainer(**settings)
        trainer.hp_search_backend = of_search(name)
        trainer.hp_name = lambda trial: f"trial {trial.number}"
        trainer.compute_objective = lambda metrics: metrics["eval_loss"] * 2
        return trainer

    return make


def test_a_trial_of_a_search_has_a_folder_of_its_own(searching, make_trainer):
    trial = SimpleNamespace(number=3, params={})
    trainer = searching("optuna")
    assert trainer._get_output_dir(trial) == os.path.join(trainer.args.output_dir, "trial 3")
    assert trainer._get_output_dir(None) == trainer.args.output_dir
    trainer.hp_name = None
    assert trainer._get_output_dir(trial) == os.path.join(trainer.args.output_dir, "run-3")
    trainer = make_trainer()
    assert trainer._get_output_dir(trial) == trainer.args.output_dir


def test_optuna_is_told_the_objective_and_the_step(searching, monkeypatch):
    told = []
    monkeypatch.setattr(backends, "report_to_optuna", lambda *args: told.append(args))
    trainer, trial = searching("optuna"), SimpleNamespace(number=0)
    metrics = {"eval_loss": 0.5}
    trainer._report_to_hp_search(trial, 7, metrics)
    assert told[0][:3] == (trial, 1.0, 7)
    assert trainer.objective == 1.0
    ended = []
    trainer.add_callback(type("Ends", (TrainerCallback,), {"on_train_end": lambda *args, **kwargs: ended.append(1)}))
    told[0][3]()  # before the trial is pruned
    assert ended == [1]


def test_a_run_outside_of_a_search_reports_nothing(searching, make_trainer, monkeypatch):
    for name in ("report_to_optuna", "report_to_ray"):
        monkeypatch.setattr(backends, name, pytest.fail)
    make_trainer()._report_to_hp_search(SimpleNamespace(), 1, {"eval_loss": 1.0})
    searching("optuna")._report_to_hp_search(None, 1, {"eval_loss": 1.0})
    searching("wandb")._report_to_hp_search(SimpleNamespace(), 1, {"eval_loss": 1.0})


@pytest.mark.parametrize("due", [False, True])
def test_ray_is_told_the_metrics_and_gets_a_checkpoint_where_one_is_due(searching, monkeypatch, due):
    told = []
    monkeypatch.setattr(backends, "report_to_ray", lambda *args: told.append(args))
    trainer, metrics = searching("ray"), {"eval_loss": 0.5}
    trainer.control.should_save = due
    trainer._report_to_hp_search({"learning_rate": 1}, 7, metrics)
    assert told == [({"eval_loss": 0.5, "objective": 1.0}, trainer._tune_save_checkpoint if due else None)]
    assert metrics == {"eval_loss": 0.5}


def test_a_checkpoint_for_ray_has_what_a_trial_goes_on_from(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=2)
    trainer.train()
    trainer._tune_save_checkpoint(str(tmp_path / "for ray"))
    folder = tmp_path / "for ray" / "checkpoint-2"
    assert os.listdir(tmp_path / "for ray") == ["checkpoint-2"]
    assert sorted(os.listdir(folder)) == [
        "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "training_args.bin",
    ]  # fmt: skip
    again = make_trainer(max_steps=4)
    assert again.train(resume_from_checkpoint=str(folder)).global_step == 4
    assert again.state.stateful_callbacks["TrainerControl"]["args"].keys() >= {"should_save", "should_log"}


def test_the_arguments_of_a_trial_are_those_it_chose(searching):
    trainer = searching("optuna")
    trainer.hp_space = lambda trial: {"learning_rate": 0.25, "seed": 9}
    trial = SimpleNamespace(number=0, params={})
    trainer._hp_search_setup(trial)
    assert (trainer.args.learning_rate, trainer.args.seed) == (0.25, 9)
    assert trainer._trial is trial


@pytest.mark.parametrize("method", ["named", "given"])
def test_clipping_gives_the_norm_before_it_outside_of_a_run_too(make_trainer, method):
    trainer = make_trainer(max_grad_norm=0.5)
    model = trainer.model if method == "named" else nn.Linear(2, 1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    expected = 3 * sum(parameter.numel() for parameter in model.parameters()) ** 0.5
    assert float(trainer._clip_grad_norm(model)) == pytest.approx(expected)
    after = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert float(after.norm()) == pytest.approx(0.5, rel=1e-4)


def test_another_model_than_the_runs_is_clipped_at_once(make_trainer):
    trainer = make_trainer(max_grad_norm=0.5)
    TrainingRun(trainer)
    model = nn.Linear(2, 1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    trainer._clip_grad_norm(model)
    assert max(float(parameter.grad.abs().max()) for parameter in model.parameters()) < 0.5


def test_the_norm_for_the_log_is_measured_where_nothing_was_clipped(make_trainer):
    trainer = make_trainer()
    for parameter in trainer.model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    trainer.model.head.bias.grad = None
    count = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.grad is not None)
    assert float(trainer._get_grad_norm(trainer.model)) == pytest.approx(2 * count**0.5)
    assert trainer._get_grad_norm(trainer.model, 0.25) == 0.25


def test_optimizer_and_schedule_are_made_once_and_those_given_are_kept(make_trainer):
    trainer = make_trainer(learning_rate=0.25, weight_decay=0.5)
    optimizer, schedule = trainer.create_optimizer(), trainer.create_scheduler(4)
    assert trainer.create_optimizer() is optimizer is trainer.optimizer
    assert trainer.create_scheduler(9) is schedule is trainer.lr_scheduler
    assert schedule.optimizer is optimizer
    assert sorted({group["weight_decay"] for group in optimizer.param_groups}) == [0.0, 0.5]
    assert {group["initial_lr"] for group in optimizer.param_groups} == {0.25}
    given = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    trainer = make_trainer({"optimizers": (given, None)})
    other = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    assert trainer.create_optimizer() is given
    assert trainer.create_scheduler(4, other).optimizer is other
    trainer = make_trainer({"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.125})})
    assert type(trainer.create_optimizer()) is torch.optim.SGD
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {0.125}


def test_a_second_run_makes_a_schedule_of_its_own_in_place_of_the_first_ones(make_trainer):
    trainer = make_trainer(max_steps=2, learning_rate=0.5)
    trainer.train()
    first = trainer.lr_scheduler
    trainer.train()
    assert trainer.lr_scheduler is not first
    assert logged(trainer, "learning_rate") == [0.5, 0.25]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(examples(12))


def test_examples_of_a_loader_are_counted_or_estimated_from_its_batches(make_trainer):
    trainer = make_trainer(per_device_train_batch_size=4)
    assert trainer.num_examples(DataLoader(range(10), batch_size=3)) == 10

    class Known(Stream):
        """Does not know its examples, and its loader its batches."""

    loader = DataLoader(Known(), batch_size=4)
    loader.__class__ = type("Loader", (DataLoader,), {"__len__": lambda self: 3})
    assert trainer.num_examples(loader) == 12


def test_order_and_loader_are_of_the_dataset_that_is_given_or_the_trainers(make_trainer):
    trainer = make_trainer()
    assert len(trainer._get_train_sampler()) == 40
    assert len(trainer._get_train_sampler(examples(7))) == 7
    assert [len(batch["labels"]) for batch in trainer.get_eval_dataloader(examples(9))] == [8, 1]
    assert sum(len(batch["labels"]) for batch in trainer.get_eval_dataloader()) == 24


def test_an_evaluation_is_of_what_is_given_or_what_the_trainer_has(make_trainer):
    trainer = make_trainer({"eval_dataset": {"first": examples(8), "second": examples(8, seed=2)}})
    every = trainer.evaluate()
    assert {name for name in every if name.endswith("_loss")} == {"eval_first_loss", "eval_second_loss"}
    assert trainer.evaluate("second")["eval_loss"] == pytest.approx(every["eval_second_loss"])
    given = trainer.evaluate({"third": examples(8)}, metric_key_prefix="test")
    assert given["test_third_loss"] == pytest.approx(every["eval_first_loss"])
    assert trainer.evaluate(examples(8))["eval_loss"] == pytest.approx(every["eval_first_loss"])


def test_an_evaluation_without_metrics_keeps_no_predictions(make_trainer, monkeypatch):
    trainer, asked = make_trainer(), []
    real = trainer.prediction_step
    monkeypatch.setattr(
        trainer, "prediction_step", lambda *args, **kwargs: (asked.append(args[2]), real(*args, **kwargs))[1]
    )
    trainer.evaluate()
    assert set(asked) == {True}
    asked.clear()
    trainer.compute_metrics = lambda prediction: {}
    trainer.evaluate()
    assert set(asked) == {False}


def test_a_prediction_has_predictions_labels_and_metrics_and_is_not_logged(make_trainer):
    trainer = make_trainer({"compute_metrics": lambda prediction: {"rows": len(prediction.predictions)}})
    told = []
    trainer.add_callback(
        type("Told", (TrainerCallback,), {"on_predict": lambda *args, metrics, **kwargs: told.append(metrics)})
    )
    data = examples(9)
    given = trainer.predict(data)
    assert given.predictions.shape == (9, 2)
    assert given.label_ids.tolist() == [row["labels"] for row in data]
    assert given.metrics["test_rows"] == 9
    assert given.metrics["test_loss"] == pytest.approx(trainer.evaluate(data)["eval_loss"])
    assert told == [given.metrics]
    assert [name for entry in trainer.state.log_history for name in entry if name.startswith("test")] == []


def test_contexts_of_a_subclass_are_entered_at_each_forward_pass_and_left(make_trainer):
    inside = []

    class Within(Trainer):
        @contextlib.contextmanager
        def autocast_smart_context_manager(self, cache_enabled=True):
            inside.append("in")
            yield
            inside.append("out")

    trainer = make_trainer({"kind": Within}, bf16=True)
    with trainer.compute_loss_context_manager():
        assert inside == ["in"]
        assert not torch.is_autocast_enabled("cpu")  # which is around the model's forward alone
    assert inside == ["in", "out"]


def test_a_log_has_epoch_and_step_and_reaches_the_callbacks(make_trainer):
    told = []
    trainer = make_trainer(include_num_input_tokens_seen="all")
    trainer.add_callback(
        type("Told", (TrainerCallback,), {"on_log": lambda *args, logs, **kwargs: told.append(dict(logs))})
    )
    trainer.state.epoch, trainer.state.global_step, trainer.state.num_input_tokens_seen = 0.5, 3, 64
    trainer.log({"score": 1.0})
    expected = {"score": 1.0, "epoch": 0.5, "num_input_tokens_seen": 64}
    assert told == [expected]
    assert trainer.state.log_history == [{**expected, "step": 3}]


def test_metrics_are_written_for_their_split_and_beside_the_others(make_trainer):
    trainer = make_trainer()
    trainer.save_metrics("train", {"loss": 0.5})
    trainer.save_metrics("eval", {"score": 1.0})
    trainer.save_metrics("test", {"score": 2.0}, combined=False)
    found = {path.name: json.loads(path.read_text()) for path in Path(trainer.args.output_dir).iterdir()}
    assert found == {
        "train_results.json": {"loss": 0.5},
        "eval_results.json": {"score": 1.0},
        "test_results.json": {"score": 2.0},
        "all_results.json": {"loss": 0.5, "score": 1.0},
    }


def test_checkpoints_are_loaded_part_by_part(make_trainer):
    first = make_trainer(max_steps=3, save_strategy="steps", save_steps=3)
    first.train()
    folder = os.path.join(first.args.output_dir, "checkpoint-3")
    again = make_trainer()
    other = nn.Module.__new__(type(again.model))
    other.__init__()
    again._load_from_checkpoint(folder, other)
    assert_same_weights(weights(other), weights(first.model))
    assert not torch.equal(again.model.head.weight, first.model.head.weight)
    again._load_from_checkpoint(folder)
    assert_same_weights(weights(again.model), weights(first.model))
    again.create_optimizer_and_scheduler(10)
    again._load_optimizer_and_scheduler(None)
    assert again.optimizer.state_dict()["state"] == {}
    again._load_optimizer_and_scheduler(folder)
    assert again.lr_scheduler.state_dict()["last_epoch"] == 3
    assert len(again.optimizer.state_dict()["state"]) == len(list(again.model.parameters()))


def test_the_checkpoints_of_the_runs_folder_or_another_are_rotated(make_trainer, tmp_path):
    trainer = make_trainer(save_total_limit=1)
    for place in (tmp_path / "run", tmp_path / "other"):
        for step in (1, 2):
            (place / f"checkpoint-{step}").mkdir(parents=True)
    trainer._rotate_checkpoints()
    assert os.listdir(tmp_path / "run") == ["checkpoint-2"]
    assert len(os.listdir(tmp_path / "other")) == 2
    trainer._rotate_checkpoints(output_dir=str(tmp_path / "other"))
    assert os.listdir(tmp_path / "other") == ["checkpoint-2"]


def test_the_models_columns_are_its_arguments_and_the_labels(make_trainer):
    trainer = make_trainer(label_names=["target"])
    assert {"x", "labels", "target"} <= set(trainer._mt_signature_columns)
    trainer._signature_columns = ["x"]
    assert trainer._mt_signature_columns == ["x"]


def test_what_comes_next_is_the_next_step_or_the_end(make_trainer):
    trainer = make_trainer(max_steps=2)
    TrainingRun(trainer)
    assert trainer._mt_what_comes() == "step 1"
    trainer.state.global_step = 2
    assert trainer._mt_what_comes() == "the end of training"
