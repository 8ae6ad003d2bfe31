"""Metrics and logs that are not numbers: told once, left out of what is saved, and training goes on."""

import collections
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import callback, messages_with

EVERY_STEP = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}


class Thing:
    def __repr__(self):
        return "a\nthing"


class Uncopyable:
    def __deepcopy__(self, memo):
        raise RuntimeError("not to be copied")


nested: list = []
nested.append(nested)

UNSAVABLE = {
    "array": np.ones(3),
    "tensor": torch.ones(3),
    "set": {1, 2},
    "object": Thing(),
    "uncopyable": Uncopyable(),
    "class": Thing,
    "large": 10**400,
    "mixed keys": {1: 0.5, "a": 0.5},
    "tuple keys": {(0, 1): 0.5},
    "list of arrays": [np.ones(2)],
    "itself": nested,
}
SAVABLE = {
    "array": (np.array([0.5]), 0.5),
    "scalar": (np.float32(0.5), 0.5),
    "no dimension": (np.array(2), 2),
    "tensor": (torch.tensor([[0.5]], requires_grad=True), 0.5),
    "by class": ([0.5, np.float32(0.25)], [0.5, 0.25]),
    "integer keys": ({0: 0.5, 1: np.float64(0.25)}, {"0": 0.5, "1": 0.25}),
    "default": (collections.defaultdict(list, {"a": np.int64(1)}), {"a": 1}),
    "word": ("good", "good"),
    "nothing": (None, None),
    "flag": (np.bool_(True), True),
}


def state_of(trainer, step):
    path = Path(trainer.args.output_dir, f"checkpoint-{step}", "trainer_state.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_metrics_that_cannot_be_saved_are_named_once_and_left_out(make_trainer, caplog):
    metrics = {**UNSAVABLE, **{f"saved {name}": value for name, (value, _) in SAVABLE.items()}, 0: 0.5, None: 1.0}
    trainer = make_trainer({"compute_metrics": lambda prediction: dict(metrics)}, **EVERY_STEP)
    trainer.train()
    entries = [each for each in state_of(trainer, 3)["log_history"] if "eval_loss" in each]
    saved = {f"eval_saved {name}": value for name, (_, value) in SAVABLE.items()}
    saved |= {"eval_0": 0.5, "eval_None": 1.0}
    assert [{name: entry.get(name, "is missing") for name in saved} for entry in entries] == [saved] * 3
    for name, value in UNSAVABLE.items():
        assert all(f"eval_{name}" not in entry for entry in entries)
        [told] = messages_with(caplog, f"metric eval_{name} ")
        assert type(value).__name__ in told
        assert "\n" not in told
    assert not messages_with(caplog, "eval_saved")
    assert make_trainer(max_steps=4).train(resume_from_checkpoint=True).global_step == 4


@pytest.mark.parametrize("save_async", [True, False])
def test_what_others_put_into_logs_and_history_does_not_end_the_run(make_trainer, caplog, save_async):
    def log(state, **_):
        trainer.log({"mine": {1}, "loss": np.ones(2), 5: 0.5})
        state.log_history.append({"own": Thing(), "step": state.global_step})

    trainer = make_trainer({"callbacks": [callback(on_step_end=log)]}, save_async=save_async, **EVERY_STEP)
    trainer.train()
    history = state_of(trainer, 3)["log_history"]
    assert {"own", "mine"}.isdisjoint(name for entry in history for name in entry)
    assert {"5": 0.5, "epoch": 0.6, "step": 3} in history
    assert [len(messages_with(caplog, f"metric {name} ")) for name in ("mine", "loss", "own")] == [1, 1, 1]


@pytest.mark.parametrize("value", [np.ones(3), "good", None], ids=str)
def test_a_best_metric_that_is_no_number_is_told_and_training_goes_on(make_trainer, caplog, value):
    settings = {**EVERY_STEP, "metric_for_best_model": "score", "lr_scheduler_type": "reduce_lr_on_plateau"}
    trainer = make_trainer({"compute_metrics": lambda prediction: {"score": value}}, **settings)
    assert trainer.train().global_step == 3
    (told,) = messages_with(caplog, "metric_for_best_model")
    assert "eval_score" in told
    assert type(value).__name__ in told
    state_of(trainer, 3)


def test_metrics_that_are_no_numbers_are_shown_and_saved_as_far_as_they_can_be(make_trainer, capsys):
    trainer = make_trainer(max_steps=1)
    metrics = {"eval_score": np.ones(2), "eval_by_class": [0.5], "eval_loss": 0.5, "eval_thing": Thing()}
    folder = Path(trainer.args.output_dir)
    folder.mkdir(exist_ok=True)
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    assert "eval_thing    = a thing" in capsys.readouterr().out
    assert json.loads((folder / "eval_results.json").read_text()) == {"eval_by_class": [0.5], "eval_loss": 0.5}
