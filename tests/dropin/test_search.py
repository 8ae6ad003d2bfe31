"""Hyper-parameter searches of this package and of transformers with the same sampler."""

import pytest
from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS

import mps_trainer
from tests.conftest import callback, refusal

from .conftest import Library, bert_classifier

optuna = pytest.importorskip("optuna")


def space(trial) -> dict[str, object]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [2, 4]),
    }


def make(library, **settings):
    saves = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2}
    return library.trainer(**{"model_init": lambda: bert_classifier(), **saves, **settings})


def search(trainer, **settings):
    settings = {"hp_space": space, "n_trials": 4, "sampler": optuna.samplers.TPESampler(seed=1), **settings}
    return trainer.hyperparameter_search(**settings)


def test_search_finds_best_run_of_transformers_in_same_folders(assert_same_runs):
    def run(library):
        def note(state, **_):
            trials.append((state.is_hyper_param_search, state.trial_name, state.trial_params))

        trials = []
        trainer = make(library, callbacks=[callback(on_train_begin=note)])
        best = search(trainer, hp_name=lambda trial: f"try-{trial.number}")
        return (
            best,
            trials,
            sorted(str(path.relative_to(library.folder)) for path in library.folder.glob("*/checkpoint-*")),
        )

    assert len(assert_same_runs(run, 1e-4)[2]) == 8  # two epochs of four trials


def test_search_continues_after_pruned_trial(library):
    study = optuna.storages.InMemoryStorage()
    search(
        make(library, save_strategy="no"),
        pruner=optuna.pruners.ThresholdPruner(upper=1e-9, n_warmup_steps=0),
        compute_objective=lambda metrics: 0.0 if len(study.get_all_trials(0)) == 1 else metrics["eval_loss"],
        storage=study,
    )
    states = [trial.state.name for trial in study.get_all_trials(0)]
    assert states == ["COMPLETE", "PRUNED", "PRUNED", "PRUNED"]


def test_search_without_model_init_is_refused(tmp_path):
    library = Library(mps_trainer, tmp_path)
    assert "model_init" in refusal(library.trainer().hyperparameter_search, backend="optuna", kind=RuntimeError)


@pytest.mark.parametrize("backend", [None, "optuna"])
def test_search_without_backend_is_refused_in_one_line(tmp_path, monkeypatch, backend):
    for kind in ALL_HYPERPARAMETER_SEARCH_BACKENDS.values():
        monkeypatch.setattr(kind, "is_available", staticmethod(lambda: False))
    said = refusal(make(Library(mps_trainer, tmp_path)).hyperparameter_search, backend=backend)
    assert said.endswith("installed. Run: python -m pip install 'mps_trainer[search]'")


def test_unknown_field_of_search_is_ignored_with_a_warning(tmp_path, caplog):
    best = search(make(Library(mps_trainer, tmp_path)), n_trials=1, hp_space=lambda trial: {"depth": 3, "seed": 5})
    assert "depth" in caplog.text
    assert best.hyperparameters == {}
