"""The search for hyper-parameters: transformers' back ends, which run this Trainer once for each trial."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..callbacks.run_report import reports_among
from ..checkpoints.folders import STATE, checkpoint_folder
from ..errors import SearchUnavailableError
from .base import TrainerBase

logger = logging.getLogger(__name__)


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
        """Trains `n_trials` times with other arguments each time; gives the best run (`BestRun`).

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
        from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS, default_hp_search_backend
        from transformers.trainer_utils import HPSearchBackend, default_compute_objective

        try:
            chosen = HPSearchBackend(default_hp_search_backend() if backend is None else backend)
            runner = ALL_HYPERPARAMETER_SEARCH_BACKENDS[chosen]()
            runner.ensure_available()
        except RuntimeError as error:
            raise SearchUnavailableError(" ".join(str(error).split())) from error
        if self.processes.are_several:
            raise SearchUnavailableError(
                f"hyperparameter_search runs in one process, and this is one of {self.processes.size}, each of which "
                "would search by itself. Start the script with python, without a launcher."
            )
        if self.model_init is None:
            raise SearchUnavailableError(
                "hyperparameter_search needs a new model for each trial, and the Trainer was given a finished one. "
                "Pass your model through a model_init function: Trainer(model_init=...)."
            )
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
        """A new model from `model_init`, which takes no argument or the trial.

        Raises:
            RuntimeError: if it takes more, or returns None.
        """
        from transformers.trainer_utils import number_of_arguments

        assert self.model_init is not None
        count = number_of_arguments(self.model_init)
        if count > 1:
            raise RuntimeError(f"model_init takes {count} arguments. Let it have 0 or 1 argument, the trial.")
        model = self.model_init(trial) if count else self.model_init()
        if model is None:
            raise RuntimeError("model_init should not return None: let it return the model.")
        return model

    def _hp_search_setup(self, trial: Any) -> None:
        """Sets the arguments that the trial chose, cast to the types of the values that they replace."""
        self._trial = trial
        if self.hp_search_backend is None or trial is None:
            return
        params = self.hp_space(trial) if self.hp_search_backend.value == "optuna" else trial
        if self.hp_search_backend.value == "ray":
            params.pop("wandb", None)
        for name, value in params.items():
            if not hasattr(self.args, name):
                logger.warning(
                    "The search sets %s, which TrainingArguments does not have: it is left out. Use it in model_init, "
                    "or name a field.",
                    name,
                )
                continue
            current = getattr(self.args, name)
            setattr(self.args, name, value if current is None else type(current)(value))
        logger.info("Trial: %s", getattr(trial, "params", params))

    def _note_trial(self) -> None:
        """Tells the callbacks, by the state, which trial this run is."""
        if self.hp_search_backend is None or self._trial is None:
            return
        from transformers.integrations import hp_params

        self.state.is_hyper_param_search = True
        self.state.trial_name = None if self.hp_name is None else self.hp_name(self._trial)
        self.state.trial_params = hp_params(self._trial)

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Tells the search how the trial does. Raises optuna.TrialPruned if it is not worth going on."""
        if self.hp_search_backend is None or trial is None:
            return
        metrics = dict(metrics)
        self.objective = self.compute_objective(metrics)
        if self.hp_search_backend.value == "optuna":
            self._report_to_optuna(trial, step)
        elif self.hp_search_backend.value == "ray":
            self._report_to_ray(metrics)

    def _report_to_optuna(self, trial: Any, step: int) -> None:
        import optuna

        if not hasattr(trial, "study") or len(trial.study.directions) > 1:  # optuna prunes by one objective only
            return
        trial.report(self.objective, step)
        if trial.should_prune():
            self.fire("on_train_end")
            raise optuna.TrialPruned()

    def _report_to_ray(self, metrics: dict[str, float]) -> None:
        import ray.tune

        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if self.control.should_save:
                self._tune_save_checkpoint(checkpoint_dir=folder)
                checkpoint = ray.tune.Checkpoint.from_directory(folder)
            ray.tune.report({**metrics, "objective": self.objective}, checkpoint=checkpoint)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes what Ray Tune needs to go on with a trial into a folder of its own in `checkpoint_dir`."""
        folder = checkpoint_folder(checkpoint_dir, self.state.global_step)
        self.save_model(folder, _internal_call=True)
        if self.args.should_save:
            self.state.stateful_callbacks["TrainerControl"] = self.control.state()
            self.savable_logs.save(self.state, os.path.join(folder, STATE))
            torch.save(self.optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
            torch.save(self.lr_scheduler.state_dict(), os.path.join(folder, "scheduler.pt"))

    def _get_output_dir(self, trial: Any) -> str:
        """Where checkpoints go: a folder of the trial's own in `args.output_dir`, which it is without a search."""
        if self.hp_search_backend is None or trial is None:
            return self.args.output_dir
        if self.hp_name is not None:
            return os.path.join(self.args.output_dir, self.hp_name(trial))
        return os.path.join(self.args.output_dir, f"run-{self._run_id(trial)}")

    def _run_id(self, trial: Any) -> Any:
        if self.hp_search_backend.value == "ray":
            import ray.tune

            return ray.tune.get_context().get_trial_id()
        if self.hp_search_backend.value == "wandb":
            import wandb

            return wandb.run.id
        return trial.number
