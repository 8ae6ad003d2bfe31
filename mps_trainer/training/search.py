"""The search for hyper-parameters: transformers' back ends, which run this Trainer once for each trial."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.trainer_utils import default_compute_objective

from ..callbacks.run_report import reports_among
from ..checkpoints.folders import STATE, checkpoint_folder
from ..search import backends, trials
from .base import TrainerBase


class Search(TrainerBase):
    """hyperparameter_search, and what a run does differently when it is a trial."""

    model_init: Callable[..., nn.Module] | None
    hp_name: Callable[[Any], str] | None = None
    hp_search_backend: Any = None  # transformers' HPSearchBackend while a search runs
    hp_space: Callable[[Any], dict[str, Any]]
    compute_objective: Callable[[dict[str, float]], Any]
    objective: Any = None  # of the trial's latest evaluation
    _trial: Any = None

    if TYPE_CHECKING:  # another part of the Trainer has it

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: Any = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Trains `n_trials` times with other arguments each time; returns the best run (`BestRun`).

        Args:
            hp_space: `trial -> {field of the arguments: value}`. Default: transformers' for the back end.
            compute_objective: `metrics -> number`, or numbers if `direction` is a list. Default: the evaluation loss,
                or the sum of all other metrics if there are any.
            direction: "minimize" or "maximize"; a list of them gives the list of the best runs.
            backend: "optuna", "ray" or "wandb". Default: the first of them that is installed.
            hp_name: `trial -> name` of the trial's folder in `output_dir`. Default: `run-<number>`.
            kwargs: for the back end, such as optuna's `sampler`, `pruner`, `timeout` and `catch`.

        Raises:
            SearchUnavailableError: without a `model_init`.
            SearchUnavailableError: if the back end is not installed; says what to install.
        """
        chosen, runner = backends.available_backend(backend)
        backends.require_searchable(self.model_init, self._mt_processes)
        self.hp_space = runner.default_hp_space if hp_space is None else hp_space
        self.hp_name = hp_name
        self.compute_objective = default_compute_objective if compute_objective is None else compute_objective
        self.hp_search_backend = chosen
        try:
            return runner.run(self, n_trials, direction, **kwargs)
        finally:
            self.hp_search_backend = None
            for report in reports_among(self.callback_handler.callbacks):
                report.end_search(self.args.output_dir)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Returns a new model from `model_init`, which takes no argument or the trial.

        Raises:
            RuntimeError: if it takes more, or returns None.
        """
        assert self.model_init is not None
        return trials.new_model(self.model_init, trial)

    def _hp_search_setup(self, trial: Any) -> None:
        """Sets the arguments that the trial chose, cast to the types of the values that they replace."""
        self._trial = trial
        if self.hp_search_backend is not None and trial is not None:
            trials.set_arguments(self.args, trial, self.hp_search_backend.value, self.hp_space)

    def _mt_note_trial(self) -> None:
        """Tells the callbacks, by the state, which trial this run is."""
        if self.hp_search_backend is not None and self._trial is not None:
            trials.set_state(self.state, self._trial, self.hp_name)

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Reports the metrics of a trial to the search. Raises optuna.TrialPruned if the trial is to end."""
        if self.hp_search_backend is None or trial is None:
            return
        metrics = dict(metrics)
        self.objective = self.compute_objective(metrics)
        if self.hp_search_backend.value == "optuna":
            backends.report_to_optuna(trial, self.objective, step, lambda: self._mt_events.fire("on_train_end"))
        elif self.hp_search_backend.value == "ray":
            save = self._tune_save_checkpoint if self.control.should_save else None
            backends.report_to_ray({**metrics, "objective": self.objective}, save)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes what Ray Tune needs to resume a trial into a folder of its own in `checkpoint_dir`."""
        folder = checkpoint_folder(checkpoint_dir, self.state.global_step)
        self.save_model(folder, _internal_call=True)
        if self.args.should_save:
            self.state.stateful_callbacks["TrainerControl"] = self.control.state()
            self._mt_savable_logs.save(self.state, os.path.join(folder, STATE))
            torch.save(self.optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
            torch.save(self.lr_scheduler.state_dict(), os.path.join(folder, "scheduler.pt"))

    def _get_output_dir(self, trial: Any) -> str:
        """Returns the folder for checkpoints: `args.output_dir`, or in a search a folder of the trial's own in it."""
        output_dir = self.args.output_dir
        if self.hp_search_backend is None or trial is None:
            return output_dir
        return os.path.join(output_dir, trials.folder_name(trial, self.hp_search_backend.value, self.hp_name))
