"""A search reports objectives and metrics to its back end."""

import os
import sys
from types import SimpleNamespace

import pytest

from mps_trainer.distributed import Processes
from mps_trainer.errors import SearchUnavailableError
from mps_trainer.search import backends


def test_several_processes_cannot_search():
    with pytest.raises(SearchUnavailableError, match="there are 2"):
        backends.require_searchable(lambda: None, Processes(0, 2))
    backends.require_searchable(lambda: None, Processes())


def test_optuna_does_not_prune_by_one_of_several_objectives():
    pytest.importorskip("optuna")
    trial = SimpleNamespace(study=SimpleNamespace(directions=[None] * 2), report=pytest.fail)
    backends.report_to_optuna(trial, 0.5, 7, pytest.fail)


@pytest.mark.parametrize("saves", [True, False])
def test_ray_gets_the_metrics_with_the_checkpoint_if_there_is_one(monkeypatch, saves):
    reports = []
    tune = SimpleNamespace(
        Checkpoint=SimpleNamespace(from_directory=os.listdir),
        report=lambda metrics, checkpoint: reports.append((metrics, checkpoint)),
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=tune))
    monkeypatch.setitem(sys.modules, "ray.tune", tune)

    def save(checkpoint_dir):
        os.mkdir(os.path.join(checkpoint_dir, "checkpoint-1"))

    backends.report_to_ray({"eval_loss": 1.0}, save if saves else None)
    assert reports == [({"eval_loss": 1.0}, ["checkpoint-1"] if saves else None)]
