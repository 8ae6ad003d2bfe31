"""The Trainer's methods for its optimizer and schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import ConflictingOptimizersError
from ..training_args import TrainingArguments
from . import optimizer as optimizers_
from .base import TrainerBase


class Optimization(TrainerBase):
    """Makes the optimizer and its schedule, each once, and says what is in them.

    Subclasses override `create_optimizer`, `create_scheduler`, both at once as `create_optimizer_and_scheduler`, or
    `get_decay_parameter_names`.
    """

    model_init: Callable[..., nn.Module] | None
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None
    _created_lr_scheduler = False  # whether `lr_scheduler` is from here: such a one is for one train() only

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Makes the optimizer, then the schedule over `num_training_steps` steps."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps=num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer that there is, else one for `model` (default: the Trainer's), kept as `optimizer`.

        It comes from `optimizer_cls_and_kwargs` if the Trainer was given that, else from `args.optim`.

        Raises:
            MisconfigurationException: what `get_optimizer_cls_and_kwargs` raises.
        """
        if self.optimizer is None:
            model = self.model if model is None else model
            if self.is_fsdp_enabled:
                model = self._wrap_model(model)  # it updates the parts that this process will have
            decay = self.get_decay_parameter_names(model)
            groups = optimizers_.parameter_groups(model, decay, self.args.weight_decay)
            kind, settings = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)
            self.optimizer = optimizers_.make_optimizer(kind, settings, groups, model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The schedule that there is, else the arguments' for `optimizer` (default: the Trainer's).

        Raises:
            UnknownSettingError: for `lr_scheduler_kwargs` that the schedule does not take.
        """
        if self.lr_scheduler is None:
            optimizer = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = optimizers_.make_scheduler(self.args, optimizer, num_training_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: nn.Module | None = None) -> tuple[Any, Any]:
        """The class and the settings of the optimizer that `args.optim` names.

        Args:
            args: `optim`, `optim_args`, `learning_rate`, `adam_*` and for some optimizers others are read.
            model: what to optimize; GaLore and APOLLO need it.

        Raises:
            MissingPackageError: if the optimizer is of a package that is not installed.
            MisconfigurationException: for settings that the optimizer cannot have, or an optimizer that is not
                supported.
        """
        return optimizers_.class_and_settings(args, model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Names of the parameters that `weight_decay` is for: all but LayerNorm's, biases, and norms by name."""
        return optimizers_.decay_parameter_names(model)

    # What is in them

    def get_num_trainable_parameters(self) -> int:
        """How many numbers the model has that training changes."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """The learning rate of each group of the optimizer.

        Raises:
            ValueError: if there is no optimizer yet.
        """
        return [group["lr"] for group in self._optimizer_groups()]

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
        """The optimizer's group that `param`, or the parameter of that name, is in.

        Without `param`, or if no group has it: the list of parameters of each group.

        Raises:
            ValueError: if there is no optimizer yet.
        """
        groups = self._optimizer_groups()
        if isinstance(param, str):
            param = dict(self.model.named_parameters()).get(param)
        for group in groups:
            if any(member is param for member in group["params"]):
                return group
        return [group["params"] for group in groups]

    def _optimizer_groups(self) -> list[dict[str, Any]]:
        if self.optimizer is None:
            raise ValueError("There is no optimizer yet: call create_optimizer() or train() first.")
        return self.optimizer.param_groups

    def _get_learning_rate(self) -> float:
        """The learning rate to log: the schedule's last one, of the first group."""
        if optimizers_.follows_metric(self.lr_scheduler):
            rate = self.optimizer.param_groups[0]["lr"]
        else:
            rate = self.lr_scheduler.get_last_lr()[0]
        return rate.item() if torch.is_tensor(rate) else rate

    # For the Trainer

    def check_given_optimizers(self) -> None:
        """Raises ConflictingOptimizersError if what the Trainer was given names two optimizers, or two models."""
        if self.optimizer_cls_and_kwargs is not None and self.optimizer is not None:
            raise ConflictingOptimizersError(
                "Both `optimizers` and `optimizer_cls_and_kwargs` were given, and each names an optimizer. "
                "Give one of the two."
            )
        if self.model_init is not None and (self.optimizer is not None or self.lr_scheduler is not None):
            raise ConflictingOptimizersError(
                "Both `model_init` and `optimizers` were given, but each train() makes a new model, which an "
                "optimizer made before does not know. Give `optimizer_cls_and_kwargs` instead, or override "
                "create_optimizer_and_scheduler in a subclass."
            )

    def renew_schedule(self, new_model: bool) -> None:
        """Before a run: drops a schedule made for an earlier one, and with a new model the optimizer of the old one.

        Without a new model the optimizer stays, with what it has learned about the gradients.
        """
        if new_model:
            self.optimizer = self.lr_scheduler = None
        elif self._created_lr_scheduler:
            self.lr_scheduler = None
        self._created_lr_scheduler = False
