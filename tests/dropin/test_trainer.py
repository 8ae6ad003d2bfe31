"""Methods of the Trainer that scripts and subclasses call outside of `train()`."""

import contextlib
import os
import shutil
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from mps_trainer import Trainer
from mps_trainer.loop.run import TrainingRun
from tests.conftest import assert_same_weights, weights


@pytest.mark.parametrize("due", [False, True])
def test_ray_gets_metrics_and_checkpoint_that_is_due_and_can_be_resumed(
    make_trainer, trained, monkeypatch, tmp_path, due
):
    place, reports, metrics = tmp_path / "for ray", [], {"eval_loss": 0.5}
    tune = SimpleNamespace(
        Checkpoint=SimpleNamespace(from_directory=lambda folder: shutil.copytree(folder, place)),
        report=lambda metrics, checkpoint: reports.append((metrics, checkpoint)),
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=tune))
    monkeypatch.setitem(sys.modules, "ray.tune", tune)
    trainer = trained(max_steps=2)
    trainer.hp_search_backend = SimpleNamespace(value="ray")
    trainer.compute_objective = lambda metrics: metrics["eval_loss"] * 2
    trainer.control.should_save = due
    trainer._report_to_hp_search({"learning_rate": 1}, 2, metrics)
    assert reports == [({"eval_loss": 0.5, "objective": 1.0}, place if due else None)]
    assert metrics == {"eval_loss": 0.5}
    if not due:
        return
    folder = place / "checkpoint-2"
    assert os.listdir(place) == ["checkpoint-2"]
    again = make_trainer(max_steps=4)
    assert again.train(resume_from_checkpoint=str(folder)).global_step == 4
    assert again.state.stateful_callbacks["TrainerControl"]["args"].keys() >= {"should_save", "should_log"}


@pytest.mark.parametrize("kind", ["the run's", "another", "another within a run"])
def test_clip_grad_norm_clips_and_returns_norm_before(make_trainer, kind):
    trainer = make_trainer(max_grad_norm=0.5)
    model = trainer.model if kind == "the run's" else nn.Linear(2, 1)
    if kind == "another within a run":
        TrainingRun(trainer)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    expected = 3 * sum(parameter.numel() for parameter in model.parameters()) ** 0.5
    assert float(trainer._clip_grad_norm(model)) == pytest.approx(expected)
    after = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert float(after.norm()) == pytest.approx(0.5, rel=1e-4)


def test_get_grad_norm_measures_norm_unless_given(make_trainer):
    trainer = make_trainer()
    for parameter in trainer.model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    trainer.model.head.bias.grad = None
    count = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.grad is not None)
    assert float(trainer._get_grad_norm(trainer.model)) == pytest.approx(2 * count**0.5)
    assert trainer._get_grad_norm(trainer.model, 0.25) == 0.25


def test_evaluation_without_metrics_asks_for_loss_only(make_trainer):
    trainer = make_trainer()
    trainer.prediction_step = step = mock.Mock(wraps=trainer.prediction_step)
    for metric in (None, lambda prediction: {}):
        step.reset_mock()
        trainer.compute_metrics = metric
        trainer.evaluate()
        assert {call.args[2] for call in step.call_args_list} == {metric is None}


def test_overridden_autocast_context_is_entered(make_trainer):
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
        assert not torch.is_autocast_enabled("cpu")  # autocast is around the model's forward alone
    assert inside == ["in", "out"]


def test_parts_of_checkpoint_load_separately(make_trainer, trained):
    first = trained(max_steps=3, save_strategy="steps", save_steps=3)
    folder = os.path.join(first.args.output_dir, "checkpoint-3")
    again = make_trainer()
    other = type(again.model)()
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


def test_rotate_checkpoints_deletes_oldest_of_given_folder(make_trainer, tmp_path):
    trainer = make_trainer(save_total_limit=1)
    for place in (tmp_path / "run", tmp_path / "other"):
        for step in (1, 2):
            (place / f"checkpoint-{step}").mkdir(parents=True)
    trainer._rotate_checkpoints()
    assert os.listdir(tmp_path / "run") == ["checkpoint-2"]
    assert len(os.listdir(tmp_path / "other")) == 2
    trainer._rotate_checkpoints(output_dir=str(tmp_path / "other"))
    assert os.listdir(tmp_path / "other") == ["checkpoint-2"]
