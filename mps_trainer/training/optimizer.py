"""The optimizer and its schedule, from the arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..arguments.choices import OptimizerNames
from ..training_args import TrainingArguments

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.RMSNorm)
_NO_DECAY_NAMES = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
# Devices whose AdamW is one kernel over all parameters. On mps it is not torch's default, and without it AdamW goes
# through the parameters one by one (586 operators a step instead of 268 for a BERT of two layers).
_FUSED_DEVICES = {"mps", "cuda", "xpu", "cpu"}


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay is for: all but biases and normalisation weights."""
    from transformers.trainer_pt_utils import get_parameter_names

    return get_parameter_names(model, list(_NORMS), _NO_DECAY_NAMES)


def parameter_groups(model: nn.Module, decay: list[str], weight_decay: float) -> list[dict[str, Any]]:
    """Two groups of the trainable parameters: with weight decay, and without."""
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    names = set(decay)
    return [
        {"params": [p for name, p in trainable.items() if name in names], "weight_decay": weight_decay},
        {"params": [p for name, p in trainable.items() if name not in names], "weight_decay": 0.0},
    ]


def class_and_settings(args: TrainingArguments) -> tuple[type, dict[str, Any]]:
    if args.optim == OptimizerNames.SGD:
        return torch.optim.SGD, {"lr": args.learning_rate}
    settings: dict[str, Any] = {
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
    }
    if args.optim == OptimizerNames.ADAMW_TORCH_FUSED and args.device.type in _FUSED_DEVICES:
        settings["fused"] = True
    return torch.optim.AdamW, settings


def make_scheduler(args: TrainingArguments, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    from transformers.optimization import get_scheduler

    return get_scheduler(
        str(args.lr_scheduler_type),
        optimizer=optimizer,
        num_warmup_steps=args.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )


def follows_metric(scheduler: Any) -> bool:
    """Whether the schedule is stepped with a metric after an evaluation, not after each step."""
    return isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def set_mode(optimizer: Any, training: bool) -> None:
    """Puts an optimizer that has modes, as schedule-free ones have, into that of training or of evaluation."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if callable(switch):
        switch()
