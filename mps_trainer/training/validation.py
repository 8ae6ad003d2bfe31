"""Whether what a Trainer was given fits together, asked before anything is loaded or moved."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import torch

from ..arguments import sharding
from ..checkpoints import shards
from ..errors import ConflictingOptimizersError, MisconfigurationException, MissingModelError
from .loaders import Loaders

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)


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
    _check_sharding(trainer, model)
    _check_evaluation(trainer)
    _check_training(trainer)


def _check_processes(trainer: Trainer) -> None:
    if trainer.processes.are_several and trainer.args.auto_find_batch_size:
        raise MisconfigurationException(
            f"auto_find_batch_size=True works in one process, and this is one of {trainer.processes.size}: memory may "
            "run out in one of them only, while the others wait for it. Give a per_device_train_batch_size that fits, "
            "and gradient_accumulation_steps for the rest."
        )


def _check_sharding(trainer: Trainer, model: Any) -> None:
    args, processes = trainer.args, trainer.processes
    if processes.is_first:
        for sentence in sharding.without_effect(args):
            logger.warning("%s", sentence)
    if not args.fsdp:
        return
    if not processes.are_several:
        only = "mps trains in one process only" if args.device.type == "mps" else "this is one"
        raise MisconfigurationException(
            f"fsdp=True shards the model over several processes, and {only}. Start the script with torchrun "
            f"--nproc_per_node 2{' and --use_cpu' if args.device.type == 'mps' else ''}, or leave fsdp out."
        )
    from torch.distributed import fsdp

    if not hasattr(fsdp, "fully_shard"):
        raise MisconfigurationException(
            f"fsdp=True needs torch 2.6 or newer, and this is {torch.__version__}. Update it, or leave fsdp out."
        )
    config: Any = args.fsdp_config
    if config.get("state_dict_type") == sharding.SHARDED:
        shards.require_able()
    if trainer.optimizer is not None or trainer.lr_scheduler is not None:
        raise ConflictingOptimizersError(
            "`optimizers` was given with fsdp=True, and knows the parameters from before they are sharded. Give "
            "`optimizer_cls_and_kwargs` instead, or override create_optimizer_and_scheduler in a subclass."
        )
    for attribute, what in (("peft_config", "PEFT's adapters"), ("quantization_method", "a quantized model")):
        if getattr(model, attribute, None) is not None:
            raise MisconfigurationException(
                f"fsdp=True does not go with {what} here, where nobody has tried it. Leave fsdp out: without it the "
                "processes have a replica each, of which little is trained."
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
