"""Checks the arguments of a Trainer for conflicts before anything is loaded or moved."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

from .arguments import sharding
from .checkpoints import shards
from .devices import ACCELERATORS
from .distributed import Processes
from .errors import ConflictingOptimizersError, MisconfigurationException, MissingModelError, NotAnObjectError
from .training_args import TrainingArguments

logger = logging.getLogger(__name__)


def check_arguments(args: Any) -> None:
    """Raises MisconfigurationException if `args` are not this package's."""
    if isinstance(args, TrainingArguments):
        return
    kind = f"{type(args).__module__}.{type(args).__name__}"
    raise MisconfigurationException(
        f"args are {kind}, and mps_trainer.Trainer needs mps_trainer's. Import TrainingArguments from mps_trainer, or "
        "make `import mps_trainer.replace_transformers` the first import, for a library with arguments of its own."
    )


# Methods of transformers' Trainer without a counterpart here, each with what to override instead.
_NOT_CALLED = {
    "_inner_training_loop": "train(), training_step() or get_batch_samples()",
    "_run_epoch": "training_step() or get_batch_samples()",
    "_prepare_for_training": "create_optimizer_and_scheduler() or _wrap_model()",
    "_init_training_state": "set_initial_training_values()",
    "create_accelerator_and_postprocess": "__init__(), and set accelerator_config in the arguments",
}


def check_subclass(kind: type) -> None:
    """Raises MisconfigurationException if a subclass overrides a method that is never called."""
    for name, instead in _NOT_CALLED.items():
        if hasattr(kind, name):
            raise MisconfigurationException(
                f"{kind.__name__} overrides {name}(), which mps_trainer.Trainer does not have, so it would not be "
                f"called. Override {instead}, or train with transformers' Trainer."
            )


def check_model(model: Any, model_init: Any) -> None:
    """Raises an error unless exactly one of the two is given, and `model` is a model."""
    if model is None and model_init is None:
        raise MissingModelError(
            "`Trainer` requires either a `model` or `model_init` argument: give it one of the two."
        )
    if model is not None and model_init is not None:
        raise MisconfigurationException(
            "`Trainer` requires either a `model` or `model_init` argument, but not both: leave one of them out."
        )
    if isinstance(model, (str, os.PathLike)):
        raise MisconfigurationException(
            f"model={str(model)!r} is the name of a model, and the Trainer needs the model itself. Load it first, for "
            f"example with AutoModelForSequenceClassification.from_pretrained({str(model)!r})."
        )
    if isinstance(model, type):
        raise NotAnObjectError(
            f"model is the class {model.__name__}, and the Trainer needs a model of it. Give it an instance, for "
            f"example {model.__name__}.from_pretrained(...)."
        )


def check_has_model(model: Any) -> None:
    """Raises MissingModelError after a search, which makes a model for each trial and keeps none."""
    if model is None:
        raise MissingModelError(
            "This Trainer has no model: a search for hyper-parameters leaves none. Set the best values with "
            "`for name, value in best_run.hyperparameters.items(): setattr(trainer.args, name, value)`, "
            "then call train()."
        )


def check_optimizers(optimizers: tuple[Any, Any], optimizer_cls_and_kwargs: Any, model_init: Any) -> None:
    """Raises ConflictingOptimizersError if two optimizers or two models are given."""
    optimizer, schedule = optimizers
    if optimizer_cls_and_kwargs is not None and optimizer is not None:
        raise ConflictingOptimizersError(
            "Both `optimizers` and `optimizer_cls_and_kwargs` were given, and each names an optimizer. "
            "Give one of the two."
        )
    if model_init is not None and (optimizer is not None or schedule is not None):
        raise ConflictingOptimizersError(
            "Both `model_init` and `optimizers` were given, but each train() builds a new model, and an existing "
            "optimizer does not have its parameters. Give `optimizer_cls_and_kwargs` instead, or override "
            "create_optimizer_and_scheduler in a subclass."
        )


def check_processes(args: TrainingArguments, processes: Processes) -> None:
    """Raises MisconfigurationException if a setting needs a single process and there are several."""
    if processes.is_distributed and args.auto_find_batch_size:
        raise MisconfigurationException(
            f"auto_find_batch_size=True works in one process, and this is one of {processes.size}: memory may run out "
            "in one of them only, while the others wait for it. Give a per_device_train_batch_size that fits, and "
            "gradient_accumulation_steps for the rest."
        )


def check_sharding(args: TrainingArguments, processes: Processes, model: Any, optimizers: tuple[Any, Any]) -> None:
    """Raises MisconfigurationException if `args.fsdp` conflicts with another argument."""
    if processes.is_first:
        for sentence in sharding.without_effect(args):
            logger.warning("%s", sentence)
    if not args.fsdp:
        return
    if "mlx" in (args.ddp_backend, *ACCELERATORS[args.device.type].backends[:1]):
        raise MisconfigurationException(
            "fsdp=True shards the model with PyTorch's FSDP2, which runs neither on mps nor over MLX. Leave fsdp out: "
            "each process then has a replica of the model. Adapters (LoRA) and gradient_checkpointing save memory."
        )
    if not processes.is_distributed:
        raise MisconfigurationException(
            "fsdp=True shards the model over several processes, and this is one. Start the script with torchrun "
            "--nproc_per_node 2, or leave fsdp out."
        )
    config: Any = args.fsdp_config
    if config.get("state_dict_type") == sharding.SHARDED:
        shards.require_able()
    if any(part is not None for part in optimizers):
        raise ConflictingOptimizersError(
            "`optimizers` was given with fsdp=True, but it holds the parameters from before sharding. Give "
            "`optimizer_cls_and_kwargs` instead, or override create_optimizer_and_scheduler in a subclass."
        )
    for attribute, what in (("peft_config", "PEFT's adapters"), ("quantization_method", "a quantized model")):
        if getattr(model, attribute, None) is not None:
            raise MisconfigurationException(
                f"fsdp=True with {what} is not supported, because it is untested. Leave fsdp out: each process then "
                "has a replica of the model, and few parameters are trained."
            )


def check_evaluation(
    args: TrainingArguments, eval_dataset: Any, compute_metrics: Callable | None, has_own_loader: bool
) -> None:
    """Raises MisconfigurationException if `args` ask for evaluations that cannot run.

    Args:
        has_own_loader: True if a subclass overrides get_eval_dataloader, which may not need `eval_dataset`.
    """
    if args.eval_strategy != "no" and eval_dataset is None and not has_own_loader:
        raise MisconfigurationException(
            f"eval_strategy={str.__str__(args.eval_strategy)!r}, but there is no eval_dataset. Give the Trainer one, "
            "or set eval_strategy='no'."
        )
    metric = compute_metrics if args.batch_eval_metrics else None
    if metric is not None and "compute_result" not in inspect.signature(metric).parameters:
        raise MisconfigurationException(
            "batch_eval_metrics=True calls compute_metrics after each batch, but yours has no argument "
            "`compute_result`, which marks the last batch. Add compute_result=False to it, and return the metrics "
            "of all batches when it is True."
        )
    if args.save_strategy == "best" and args.metric_for_best_model is None:
        raise MisconfigurationException(
            "save_strategy='best' needs a metric: `args.metric_for_best_model` must be provided, for example 'loss'."
        )


def check_training(args: TrainingArguments, dataset: Any, collator: Any) -> None:
    """Raises MisconfigurationException for endless data, and TypeError for a collator that is not callable."""
    if collator is not None and not callable(collator):
        raise TypeError(
            f"The data_collator is a {type(collator).__name__}, which cannot be called. Give a function, or an object "
            "with __call__, that makes a batch from a list of items."
        )
    if dataset is not None and not hasattr(dataset, "__len__") and args.max_steps <= 0:
        raise MisconfigurationException(
            "The training dataset has no length, so num_train_epochs does not define the number of steps. Set "
            "max_steps."
        )


def check_not_training(is_in_train: bool) -> None:
    """Refuses a second run of a Trainer while its first one is under way."""
    if is_in_train:
        raise MisconfigurationException(
            "This Trainer is training already, in another thread or in the run that has called its callback. Wait "
            "until that run has ended, or make another Trainer."
        )


def check_learning_rate(args: TrainingArguments, optimizer: Any, created_with: float | None) -> None:
    """Warns if the optimizer of an earlier run, which goes on, was created with another learning rate."""
    is_own = created_with is not None and getattr(optimizer, "defaults", {}).get("lr") == created_with
    if is_own and created_with != args.learning_rate:
        logger.warning(
            "learning_rate=%r has no effect: training goes on with the optimizer of the earlier run, created with %r. "
            "Set trainer.optimizer = None before train() to make a new one.",
            args.learning_rate,
            created_with,
        )
