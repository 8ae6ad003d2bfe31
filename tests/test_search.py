"""A run that is a trial: its model, arguments, folder and state, and what it reports to its back end."""

import sys
from types import SimpleNamespace

import pytest
import torch

from mps_trainer import search
from mps_trainer.distributed import Processes
from mps_trainer.errors import SearchUnavailableError
from tests.conftest import Classifier, callback, refusal


def test_a_model_comes_from_a_function_with_or_without_the_trial():
    assert search.new_model(lambda: "model", "trial") == "model"
    assert search.new_model(lambda trial: trial, "trial") == "trial"
    assert "takes 2 arguments" in refusal(search.new_model, lambda first, second: None, kind=RuntimeError)
    assert "should not return None" in refusal(search.new_model, lambda: None, kind=RuntimeError)


@pytest.mark.parametrize("backend", ["optuna", "ray", "wandb"])
def test_values_of_a_trial_have_the_types_of_the_fields(make_args, backend, caplog):
    args = make_args(max_steps=5, warmup_steps=0)
    chosen = {"learning_rate": 1, "max_steps": 7.0, "depth": 3}
    trial = {"optuna": SimpleNamespace(params={}), "ray": {**chosen, "wandb": 1}, "wandb": {**chosen}}[backend]
    search.set_arguments(args, trial, backend, lambda trial: chosen)
    assert (args.learning_rate, args.max_steps) == (1.0, 7)
    assert (type(args.learning_rate), type(args.max_steps)) == (float, int)
    assert [record.args[0] for record in caplog.records if "The search sets" in record.msg] == ["depth"]


def test_a_fraction_stays_one_where_the_argument_was_a_whole_number(make_args):
    args = make_args(warmup_steps=0, max_grad_norm=1, num_train_epochs=3)
    chosen = {"warmup_steps": 0.1, "max_grad_norm": 0.3, "num_train_epochs": 2.5, "per_device_train_batch_size": 4.5}
    search.set_arguments(args, chosen, "ray", dict)
    assert {name: getattr(args, name) for name in chosen} == {**chosen, "per_device_train_batch_size": 4}


@pytest.mark.parametrize(
    ("name", "values", "new", "meant"),
    [
        ("warmup_ratio", [0.1, 0.0, 0.2], "warmup_steps", [0.1, 0.0, 0.2]),
        ("adafactor", [True, False, True], "optim", ["adafactor", "adamw_torch_fused", "adafactor"]),
        ("per_gpu_train_batch_size", [4, 2, 4], "per_device_train_batch_size", [4, 2, 4]),
        ("evaluation_strategy", ["no", "epoch"], "eval_strategy", ["no", "epoch"]),
        ("jit_mode_eval", [True, False], "jit_mode_eval", [False, False]),
    ],
)
def test_deprecated_names_of_trials_set_the_new_fields_and_warn(make_args, name, values, new, meant):
    args, found = make_args(), []
    for value in values:
        with pytest.warns(FutureWarning, match=f"`{name}` is deprecated"):
            search.set_arguments(args, {name: value}, "ray", dict)
        assert getattr(args, name) == getattr(make_args(), name)
        found.append(getattr(args, new))
    assert found == meant
    assert {type(value) for value in found} == {type(getattr(make_args(**{new: meant[0]}), new))}


@pytest.mark.parametrize(("backend", "name"), [("optuna", "run-3"), ("ray", "run-of-ray"), ("wandb", "run-of-wandb")])
def test_a_folder_has_the_number_of_the_back_end_or_the_name_that_is_given(monkeypatch, backend, name):
    tune = SimpleNamespace(get_context=lambda: SimpleNamespace(get_trial_id=lambda: "of-ray"))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=tune))
    monkeypatch.setitem(sys.modules, "ray.tune", tune)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(id="of-wandb")))
    trial = SimpleNamespace(number=3)
    assert search.folder_name(trial, backend, None) == name
    assert search.folder_name(trial, backend, lambda trial: f"try-{trial.number}") == "try-3"


def test_several_processes_cannot_search():
    two = Processes(0, 2)
    assert "there are 2" in refusal(search.require_searchable, lambda: None, two, kind=SearchUnavailableError)
    search.require_searchable(lambda: None, Processes())


def test_optuna_does_not_prune_by_one_of_several_objectives():
    pytest.importorskip("optuna")
    trial = SimpleNamespace(study=SimpleNamespace(directions=[None] * 2), report=pytest.fail)
    search.report_to_optuna(trial, 0.5, 7, pytest.fail)


def test_callbacks_see_the_trial_and_optuna_gets_each_evaluation(make_trainer, make_model):
    optuna = pytest.importorskip("optuna")
    seen, reported = [], []

    class Pruner(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            reported.append([*trial.intermediate_values])
            return False

    note = callback(on_step_end=lambda args, state, control, **_: seen.append(state.trial_params))
    given = {"model_init": lambda: make_model(), "callbacks": [note]}
    trainer = make_trainer(given, max_steps=2, eval_strategy="steps", eval_steps=1)
    trainer.hyperparameter_search(lambda trial: {"seed": trial.suggest_int("seed", 7, 7)}, n_trials=1, pruner=Pruner())
    assert (seen, reported) == ([{"seed": 7}] * 2, [[1], [1, 2]])


def test_model_of_a_trial_is_made_with_the_seed_of_that_trial(make_trainer):
    optuna = pytest.importorskip("optuna")
    seeds = []

    def model_init(trial):
        seeds.append((None if trial is None else trial.params["seed"], torch.initial_seed()))
        return Classifier()

    trainer = make_trainer({"model_init": model_init}, max_steps=1, eval_strategy="steps", eval_steps=1, seed=3)
    space = {"seed": [5, 6, 7]}
    sampler = optuna.samplers.GridSampler(space, seed=0)
    trainer.hyperparameter_search(
        lambda trial: {"seed": trial.suggest_categorical("seed", space["seed"])}, n_trials=3, sampler=sampler
    )
    assert seeds[0] == (None, 3)  # the model that the Trainer is made with
    assert sorted(seeds[1:]) == [(5, 5), (6, 6), (7, 7)]


@pytest.mark.parametrize("work", ["evaluate", "predict", "save_model", "get_num_trainable_parameters"])
def test_methods_that_need_a_model_name_the_cause_after_a_search(make_trainer, make_model, work):
    pytest.importorskip("optuna")
    trainer = make_trainer({"model_init": lambda: make_model()}, max_steps=1, eval_strategy="steps", eval_steps=1)
    trainer.hyperparameter_search(lambda trial: {"seed": trial.suggest_int("seed", 1, 2)}, n_trials=1)
    text = refusal(getattr(trainer, work), *([trainer.eval_dataset] if work == "predict" else []), kind=RuntimeError)
    assert text.startswith("This Trainer has no model: a search for hyper-parameters leaves none. Set the best values")
    assert "call train()" in text
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
