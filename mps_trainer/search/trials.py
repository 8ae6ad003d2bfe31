"""Sets up a trial of a search: its model, arguments, folder, and entries in the run's state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers.trainer_utils import number_of_arguments

if TYPE_CHECKING:
    from torch import nn
    from transformers.trainer_callback import TrainerState

    from ..training_args import TrainingArguments

logger = logging.getLogger(__name__)


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
    for name, value in params.items():
        if not hasattr(args, name):
            logger.warning(
                "The search sets %s, which is not a field of TrainingArguments, so it is ignored. Use it in "
                "model_init, or name a field.",
                name,
            )
            continue
        current = getattr(args, name)
        setattr(args, name, value if current is None else type(current)(value))
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
