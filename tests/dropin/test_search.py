"""The search for hyper-parameters, by this package and by transformers with the same sampler."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import mps_trainer

optuna = pytest.importorskip("optuna")


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y = self.line(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}


POINTS = [{"x": torch.tensor([i / 16]), "labels": torch.tensor(2 * i / 16 + 1)} for i in range(16)]


def space(trial) -> dict[str, object]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [2, 4]),
    }


def make(library, folder, model_init=lambda: Regression(), **settings):
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "report_to": "none", **settings}
    args = library.TrainingArguments(
        output_dir=str(folder), use_cpu=True, disable_tqdm=True, num_train_epochs=2, **settings
    )
    return library.Trainer(args=args, model_init=model_init, train_dataset=POINTS, eval_dataset=POINTS)


def search(trainer, **settings):
    settings = {"hp_space": space, "n_trials": 4, "sampler": optuna.samplers.TPESampler(seed=1), **settings}
    return trainer.hyperparameter_search(**settings)


def test_same_trials_give_the_same_best_run_in_the_same_folders(tmp_path):
    runs, names = [], []
    for library in (transformers, mps_trainer):
        folder = tmp_path / library.__name__
        runs.append(search(make(library, folder), hp_name=lambda trial: f"try-{trial.number}"))
        names.append(sorted(str(path.relative_to(folder)) for path in folder.glob("*/checkpoint-*")))
    theirs, ours = runs
    assert (ours.run_id, ours.hyperparameters) == (theirs.run_id, theirs.hyperparameters)
    assert ours.objective == pytest.approx(theirs.objective, abs=1e-4)
    assert names[0] == names[1]
    assert len(names[0]) == 8  # two epochs of four trials


@pytest.mark.parametrize("library", [transformers, mps_trainer])
def test_a_trial_that_is_pruned_ends_early_and_the_search_goes_on(tmp_path, library):
    study = optuna.storages.InMemoryStorage()
    search(
        make(library, tmp_path, save_strategy="no"),
        pruner=optuna.pruners.ThresholdPruner(upper=1e-9, n_warmup_steps=0),
        compute_objective=lambda metrics: 0.0 if len(study.get_all_trials(0)) == 1 else metrics["eval_loss"],
        storage=study,
    )
    states = [trial.state.name for trial in study.get_all_trials(0)]
    assert states == ["COMPLETE", "PRUNED", "PRUNED", "PRUNED"]


def test_without_model_init_is_refused_as_by_transformers(tmp_path):
    args = mps_trainer.TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(RuntimeError, match="model_init function"):
        mps_trainer.Trainer(model=Regression(), args=args).hyperparameter_search(backend="optuna")


def test_model_init_with_two_arguments_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="0 or 1 argument"):
        make(mps_trainer, tmp_path, model_init=lambda first, second: Regression())


@pytest.mark.parametrize("backend", [None, "optuna"])
def test_without_a_back_end_one_line_says_what_to_install(tmp_path, monkeypatch, backend):
    from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS

    for kind in ALL_HYPERPARAMETER_SEARCH_BACKENDS.values():
        monkeypatch.setattr(kind, "is_available", staticmethod(lambda: False))
    with pytest.raises(mps_trainer.MisconfigurationException, match=r"pip install.*optuna") as caught:
        make(mps_trainer, tmp_path).hyperparameter_search(backend=backend)
    assert "\n" not in str(caught.value)


def test_a_field_that_the_arguments_have_not_is_left_out_with_a_warning(tmp_path, caplog):
    best = search(make(mps_trainer, tmp_path), n_trials=1, hp_space=lambda trial: {"depth": 3, "seed": 5})
    assert "The search sets depth, which is not a field of TrainingArguments" in caplog.text
    assert best.hyperparameters == {}
