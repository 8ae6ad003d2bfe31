"""Searches hyper-parameters with transformers' back ends: sets up trials and reports them."""

from __future__ import annotations

import dataclasses
import logging
import re
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers.trainer_utils import HPSearchBackend, number_of_arguments

from .arguments.deprecated import with_new_names
from .errors import SearchUnavailableError
from .utils.installation import how_to_install

if TYPE_CHECKING:
    from torch import nn
    from transformers.trainer_callback import TrainerState

    from .distributed import Processes
    from .training_args import TrainingArguments

logger = logging.getLogger(__name__)


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
        why = " ".join(str(error).split())
        if name in (None, "optuna"):
            missing = "Optuna is not" if name else "no back end, such as Optuna, is"
            why = f"hyperparameter_search cannot run: {missing} installed. {how_to_install('optuna')}"
        raise SearchUnavailableError(why) from error
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


def new_model(model_init: Callable[..., nn.Module], trial: Any = None) -> nn.Module:
    """Returns a new model from `model_init`, which takes no argument or the trial.

    Raises:
        RuntimeError: if it takes more, or returns None.
    """
    count = number_of_arguments(model_init)
    if count > 1:
        raise RuntimeError(f"model_init takes {count} arguments. It must have 0 or 1 argument, the trial.")
    model = model_init(trial) if count else model_init()
    if model is None:
        raise RuntimeError("model_init should not return None: return the model.")
    return model


def set_arguments(
    args: TrainingArguments, trial: Any, backend: str, hp_space: Callable[[Any], dict[str, Any]]
) -> None:
    """Sets the fields of `args` that the trial chose, cast to the types of the values that they replace."""
    params = hp_space(trial) if backend == "optuna" else trial
    if backend == "ray":
        params.pop("wandb", None)
    fractions = {field.name for field in dataclasses.fields(args) if re.search(r"\bfloat\b", str(field.type))}
    for name, value in with_new_names(args, params).items():
        if not hasattr(args, name):
            logger.warning(
                "The search sets %s, which is not a field of TrainingArguments, so it is ignored. Use it in "
                "model_init, or name a field.",
                name,
            )
            continue
        current = getattr(args, name)
        cast = value if current is None else type(current)(value)
        # a field for fractions may hold a whole number, such as warmup_steps=0, and 0.1 must not become 0
        setattr(args, name, float(value) if name in fractions and cast != value else cast)
    logger.info("Trial: %s", getattr(trial, "params", params))


def set_state(state: TrainerState, trial: Any, hp_name: Callable[[Any], str] | None) -> None:
    """Writes the name and parameters of the trial into `state` for the callbacks."""
    from transformers.integrations import hp_params

    state.is_hyper_param_search = True
    state.trial_name = None if hp_name is None else hp_name(trial)
    state.trial_params = hp_params(trial)


def folder_name(trial: Any, backend: str, hp_name: Callable[[Any], str] | None) -> str:
    """Returns the name of the trial's folder in `output_dir`."""
    if hp_name is not None:
        return hp_name(trial)
    if backend == "ray":
        import ray.tune

        return f"run-{ray.tune.get_context().get_trial_id()}"
    if backend == "wandb":
        import wandb

        return f"run-{wandb.run.id}"
    return f"run-{trial.number}"


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
