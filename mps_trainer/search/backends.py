"""Selects the back end of a search and reports trials to it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers.trainer_utils import HPSearchBackend

from ..errors import SearchUnavailableError

if TYPE_CHECKING:
    from ..distributed import Processes


def available_backend(name: Any = None) -> tuple[Any, Any]:
    """Returns the back end called `name`, by default one that is installed: its `HPSearchBackend`, and what runs it.

    Raises:
        SearchUnavailableError: if the back end is not installed; says what to install.
    """
    from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS, default_hp_search_backend

    try:
        chosen = HPSearchBackend(default_hp_search_backend() if name is None else name)
        backend = ALL_HYPERPARAMETER_SEARCH_BACKENDS[chosen]()
        backend.ensure_available()
    except RuntimeError as error:
        raise SearchUnavailableError(" ".join(str(error).split())) from error
    return chosen, backend


def require_searchable(model_init: Callable | None, processes: Processes) -> None:
    """Raises SearchUnavailableError with several processes, or without a `model_init`."""
    if processes.is_distributed:
        raise SearchUnavailableError(
            f"hyperparameter_search runs in one process, and there are {processes.size}, which would each search "
            "separately. Start the script with python, without a launcher."
        )
    if model_init is None:
        raise SearchUnavailableError(
            "hyperparameter_search needs a new model for each trial, and the Trainer has an existing one. Pass your "
            "model through a model_init function: Trainer(model_init=...)."
        )


def report_to_optuna(trial: Any, objective: Any, step: int, before_pruning: Callable[[], None]) -> None:
    """Reports the objective of a trial at `step`.

    Raises:
        optuna.TrialPruned: if the trial is to end, after `before_pruning` was called.
    """
    import optuna

    if not hasattr(trial, "study") or len(trial.study.directions) > 1:  # optuna prunes by one objective only
        return
    trial.report(objective, step)
    if trial.should_prune():
        before_pruning()
        raise optuna.TrialPruned()


def report_to_ray(metrics: dict[str, Any], save: Callable[..., None] | None) -> None:
    """Reports `metrics` with a checkpoint, which `save(checkpoint_dir=...)` writes; without one if that is None."""
    import ray.tune

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if save is not None:
            save(checkpoint_dir=folder)
            checkpoint = ray.tune.Checkpoint.from_directory(folder)
        ray.tune.report(metrics, checkpoint=checkpoint)
