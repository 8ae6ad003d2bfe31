"""Whether what a Trainer was given fits together, asked before anything is loaded or moved."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ..errors import MisconfigurationException, MissingModelError
from .loaders import Loaders

if TYPE_CHECKING:
    from .trainer import Trainer


def check(trainer: Trainer, model: Any) -> None:
    """Raises MisconfigurationException, or what transformers raises where that is of another type."""
    if model is None and trainer.model_init is None:
        raise MissingModelError(
            "`Trainer` requires either a `model` or `model_init` argument: give it one of the two."
        )
    if model is not None and trainer.model_init is not None:
        raise MisconfigurationException(
            "`Trainer` requires either a `model` or `model_init` argument, but not both: leave one of them out."
        )
    trainer.check_given_optimizers()
    _check_processes(trainer)
    _check_evaluation(trainer)
    _check_training(trainer)


def _check_processes(trainer: Trainer) -> None:
    if trainer.processes.are_several and trainer.args.auto_find_batch_size:
        raise MisconfigurationException(
            f"auto_find_batch_size=True works in one process, and this is one of {trainer.processes.size}: memory may "
            "run out in one of them only, while the others wait for it. Give a per_device_train_batch_size that fits, "
            "and gradient_accumulation_steps for the rest."
        )


def _check_evaluation(trainer: Trainer) -> None:
    args = trainer.args
    has_own_loader = type(trainer).get_eval_dataloader is not Loaders.get_eval_dataloader
    if args.eval_strategy != "no" and trainer.eval_dataset is None and not has_own_loader:
        raise MisconfigurationException(
            f"eval_strategy={str.__str__(args.eval_strategy)!r}, but there is no eval_dataset. Give the Trainer one, "
            "or set eval_strategy='no'."
        )
    metric = trainer.compute_metrics if args.batch_eval_metrics else None
    if metric is not None and "compute_result" not in inspect.signature(metric).parameters:
        raise MisconfigurationException(
            "batch_eval_metrics=True calls compute_metrics after each batch, and yours has no argument "
            "`compute_result` to tell the last one by. Add compute_result=False to it, and return the metrics of "
            "all batches when it is true."
        )
    if args.save_strategy == "best" and args.metric_for_best_model is None:
        raise MisconfigurationException(
            "save_strategy='best', but nothing says what is best: `args.metric_for_best_model` must be provided, "
            "'loss' for one."
        )


def _check_training(trainer: Trainer) -> None:
    args, dataset, collator = trainer.args, trainer.train_dataset, trainer.data_collator
    if collator is not None and not callable(collator):
        raise TypeError(
            f"The data_collator is a {type(collator).__name__}, which cannot be called. Give a function, or an object "
            "with __call__, that makes a batch from a list of items."
        )
    if dataset is not None and not hasattr(dataset, "__len__") and args.max_steps <= 0:
        raise MisconfigurationException(
            "The training dataset does not know its length, so num_train_epochs cannot say where to stop. "
            "Set max_steps."
        )
