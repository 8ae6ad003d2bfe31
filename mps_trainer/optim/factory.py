"""Creates the optimizer and its learning rate schedule from the arguments."""

from __future__ import annotations

import collections
import importlib.util
import logging
from typing import Any

import torch
from torch import nn
from transformers import optimization as their_optimization
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer, LayerWiseDummyScheduler, get_parameter_names

from ..arguments.choices import OptimizerNames, SchedulerType
from ..devices import ACCELERATORS
from ..distributed.sharded import is_shard
from ..errors import MisconfigurationException, MissingPackageError, UnknownSettingError
from ..training_args import TrainingArguments
from ..utils.installation import how_to_install
from ..utils.text import choice_text, sentence
from .adamw import AdamW

logger = logging.getLogger(__name__)

_NO_DECAY_NAMES = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
_IN_8_BITS = frozenset(("adamw_8bit", "adamw_bnb_8bit", "ademamix_8bit", "lion_8bit", "rmsprop_bnb_8bit"))
_FOLLOW_METRIC = (torch.optim.lr_scheduler.ReduceLROnPlateau, their_optimization.GreedyLR)
_NO_SETTINGS = (SchedulerType.CONSTANT, SchedulerType.CONSTANT_WITH_WARMUP)


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Returns the names of the parameters with weight decay: all but biases, LayerNorm's, and norms by name.

    transformers' rule. A BatchNorm or GroupNorm is exempt if its name says "norm", such as `norm` or `final_norm`.
    """
    return get_parameter_names(model, [nn.LayerNorm], _NO_DECAY_NAMES)


def parameter_groups(model: nn.Module, decay: list[str], weight_decay: float) -> list[dict[str, Any]]:
    """Returns two groups of the trainable parameters: with weight decay, and without."""
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    names = set(decay)
    return [
        {"params": [p for name, p in trainable.items() if name in names], "weight_decay": weight_decay},
        {"params": [p for name, p in trainable.items() if name not in names], "weight_decay": 0.0},
    ]


class _Settings(collections.UserDict):
    """`optim_args` by name; remembers which of them were asked for."""

    def __init__(self, given: dict[str, str]) -> None:
        self.asked: set[Any] = set()
        super().__init__(given)

    def __contains__(self, name: object) -> bool:
        self.asked.add(name)
        return super().__contains__(name)

    def __getitem__(self, name: Any) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def class_and_settings(args: TrainingArguments, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
    """Returns the class, or factory, that `args.optim` names and its settings, as transformers does."""
    optim = choice_text(args.optim)
    # bitsandbytes 0.50 would begin to train: it keeps the states of small weights in 32 bits and out of pages, and
    # fails at the first weight of 4,096 numbers (8 bits) or of 100,000 (pages).
    if args.device.type == "mps" and (optim.startswith("paged_") or optim in _IN_8_BITS):
        reason = "bitsandbytes has no kernel for mps that updates states in 8 bits"
        if optim.startswith("paged_"):
            reason = "its states need CUDA's paged memory"
        raise MisconfigurationException(
            f"optim='{optim}' does not work on mps: {reason}. Use "
            "optim='adamw_torch_8bit', whose 8-bit states work on mps (python -m pip install "
            "'mps_trainer[optimizers]'), or 'adamw_torch_fused' where only adapters are trained."
        )
    pairs = [part.partition("=") for part in (args.optim_args or "").replace(" ", "").split(",") if part]
    if not all(name and value and "=" not in value for name, _, value in pairs):
        raise MisconfigurationException(
            f"optim_args={args.optim_args!r} cannot be read: it must be name=value, separated by commas, such as "
            "'momentum=0.9,nesterov=true'."
        )
    try:
        kind, settings = _from_transformers(args, model, {name: value for name, _, value in pairs})
    except ImportError as error:
        why = sentence(error)
        for name in ("bitsandbytes", "torchao"):
            if name in why and importlib.util.find_spec(name) is None:  # transformers does not name versions that work
                why = f"{name} is not installed. {how_to_install(name)}."
        raise MissingPackageError(
            f"optim='{optim}' cannot be used here: {why} Or use one that torch alone provides, such as "
            "optim='adamw_torch_fused'."
        ) from error
    except ValueError as error:
        raise MisconfigurationException(
            f"optim='{optim}' with optim_args={args.optim_args!r} cannot be used: {error}"
        ) from error
    # torch's AdamW has a kernel over all parameters. It is not torch's default on mps, where AdamW goes through the
    # parameters one by one without it (586 operators a step instead of 268 for a BERT of two layers).
    if args.optim == OptimizerNames.ADAMW_TORCH_FUSED and args.device.type not in ACCELERATORS:
        settings.pop("fused", None)
    return kind, settings


def _from_transformers(args: Any, model: Any, optim_args: dict[str, str]) -> tuple[Any, dict[str, Any]]:
    from transformers import trainer_optimizer as theirs

    given = _Settings(optim_args)
    context = theirs.OptimizerContext(
        args=args,
        model=model,
        optimizer_kwargs={"lr": args.learning_rate},
        adam_kwargs={"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon},
        optim_args=given,
    )
    handler = theirs._OPTIMIZER_HANDLERS.get(args.optim)
    if handler is None:
        raise ValueError("the installed release of transformers does not have it")
    kind, settings = handler(context)
    unread = [name for name in optim_args if name not in given.asked and name not in settings]
    if unread:
        logger.warning(
            "optim_args: optim='%s' has no %s here, which is ignored.", choice_text(args.optim), ", ".join(unread)
        )
    return kind, settings


def make_optimizer(
    kind: Any, settings: dict[str, Any], groups: list[dict[str, Any]], model: nn.Module
) -> torch.optim.Optimizer:
    """Returns an optimizer of class `kind`, or the one that the factory `kind` makes for `model`.

    Three settings stand for the groups: "params" (GaLore, APOLLO), "model", and "optimizer_dict" (their layer-wise
    kinds, where the work is in hooks and the optimizer a dummy).
    """
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        return kind()(model, **settings)
    settings = dict(settings)
    what: Any = groups
    for name in ("params", "model", "optimizer_dict"):
        what = settings.pop(name, what)
    if settings.get("fused"):
        _refuse_complex(model)
    in_shards = any(map(is_shard, model.parameters()))
    if kind is torch.optim.AdamW and settings.get("fused") and not in_shards:
        kind = AdamW  # the same with fewer kernels
    elif kind.__module__.startswith("torchao.") and not in_shards:
        kind = _uncompiled(kind, settings, model)
    optimizer = kind(what, **settings)
    if "bitsandbytes" in str(kind) and settings.get("optim_bits") == 8:
        import bitsandbytes

        # at 8 bits, embeddings train unstably; bitsandbytes exempts its own
        manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                manager.register_module_override(module, "weight", {"optim_bits": 32})
    return optimizer


def _refuse_complex(model: nn.Module) -> None:
    """Raises MisconfigurationException for complex weights, which torch's fused optimizers do not take."""
    for name, parameter in model.named_parameters():
        if parameter.is_complex() and parameter.requires_grad:
            raise MisconfigurationException(
                f"parameter {name!r} of {type(model).__name__} is {str(parameter.dtype).removeprefix('torch.')}, and "
                "optim='adamw_torch_fused' updates all weights in one kernel for real numbers. Use "
                "optim='adamw_torch'."
            )


def _uncompiled(kind: Any, settings: dict[str, Any], model: nn.Module) -> Any:
    """Returns the uncompiled kind of torchao's AdamW on mps and the CPU, and otherwise `kind`."""
    if settings.get("amsgrad") or {each.device.type for each in model.parameters()} - {"mps", "cpu"}:
        return kind
    from . import low_bit

    return low_bit.UNCOMPILED.get(kind, kind)


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Returns the optimizer's groups of parameters.

    Raises:
        ValueError: if there is no optimizer yet.
    """
    if optimizer is None:
        raise ValueError("There is no optimizer yet: call create_optimizer() or train() first.")
    return optimizer.param_groups


def group_of(optimizer: Any, param: str | nn.Parameter | None, model: nn.Module) -> Any:
    """Returns the group that has `param`, or the parameter of that name in `model`; else the parameters of each group.

    Raises:
        ValueError: if there is no optimizer yet.
    """
    groups = groups_of(optimizer)
    if isinstance(param, str):
        param = dict(model.named_parameters()).get(param)
    for group in groups:
        if any(member is param for member in group["params"]):
            return group
    return [group["params"] for group in groups]


def learning_rate(optimizer: Any, scheduler: Any) -> float:
    """Returns the schedule's last learning rate, of the first group."""
    rate = optimizer.param_groups[0]["lr"] if follows_metric(scheduler) else scheduler.get_last_lr()[0]
    return rate.item() if torch.is_tensor(rate) else rate


def set_mode(optimizer: Any, training: bool) -> None:
    """Switches an optimizer with modes, such as a schedule-free one, between training and evaluation."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if callable(switch):
        switch()


def make_scheduler(args: TrainingArguments, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """Returns transformers' schedule for `args` over `steps` steps.

    A layer-wise optimizer has one for each parameter, stepped by a hook after the one that updates the parameter.
    """
    if isinstance(optimizer, LayerWiseDummyOptimizer):
        schedules = {p: make_scheduler(args, each, steps) for p, each in optimizer.optimizer_dict.items()}
        for parameter in schedules:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda parameter: schedules[parameter].step())
        return _LayerWiseSchedule(optimizer_dict=optimizer.optimizer_dict, lr=optimizer.defaults["lr"])
    if args.lr_scheduler_kwargs and args.lr_scheduler_type in _NO_SETTINGS:
        logger.warning(
            "lr_scheduler_kwargs=%s is ignored: lr_scheduler_type='%s' has no settings.",
            args.lr_scheduler_kwargs,
            choice_text(args.lr_scheduler_type),
        )
    try:
        return their_optimization.get_scheduler(
            choice_text(args.lr_scheduler_type),
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except (TypeError, ValueError) as error:
        raise UnknownSettingError(
            f"lr_scheduler_type='{choice_text(args.lr_scheduler_type)}' cannot be created with "
            f"lr_scheduler_kwargs={args.lr_scheduler_kwargs}: {error}. Give only settings of this schedule."
        ) from error


class _LayerWiseSchedule(LayerWiseDummyScheduler):
    """Shows the first parameter's learning rate, and does nothing.

    transformers' own gives the rates of all parameters for a dummy that has one, which torch 2.13 refuses.
    """

    def get_lr(self) -> list[float]:
        return super().get_lr()[:1]


def follows_metric(scheduler: Any) -> bool:
    """Returns True if the schedule is stepped with a metric after an evaluation, not after each step."""
    return isinstance(scheduler, _FOLLOW_METRIC)
