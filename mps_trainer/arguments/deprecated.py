"""Deprecated names of earlier releases of transformers.

Each does what it always did, says once what to write instead, and is then spent: its value has moved to the new
name, so that copying the arguments does not warn again. Only logging_dir has no new name among the arguments and keeps
its value: `dataclasses.replace` stays silent about it, a file or a dictionary that still names it does not.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..devices.facts import process_number
from ..errors import MisconfigurationException
from .choices import IntervalStrategy
from .fields import option
from .removed import RemovedArguments

DROPPED_IN = "1.0"


@dataclass(kw_only=True)
class DeprecatedArguments:
    use_mps_device: bool = option(
        False, "Deprecated: mps is the default where it is available; accelerator=mps requires it."
    )
    no_cuda: bool = option(False, "Deprecated: use use_cpu.")
    evaluation_strategy: str | None = option(
        None, "Deprecated: use eval_strategy.", choices=[choice.value for choice in IntervalStrategy]
    )
    per_gpu_train_batch_size: int | None = option(None, "Deprecated: use per_device_train_batch_size.")
    per_gpu_eval_batch_size: int | None = option(None, "Deprecated: use per_device_eval_batch_size.")
    warmup_ratio: float | None = option(None, "Deprecated: use warmup_steps with a value below 1.")
    logging_dir: str | None = option(None, "Deprecated: use the environment variable TENSORBOARD_LOGGING_DIR.")
    adafactor: bool = option(False, "Deprecated: use optim=adafactor.")
    group_by_length: bool = option(False, "Deprecated: use train_sampling_strategy=group_by_length.")
    include_inputs_for_metrics: bool = option(False, "Deprecated: use include_for_metrics=inputs.")
    include_tokens_per_second: bool = option(
        False, "Deprecated: use include_num_input_tokens_seen, which also logs tokens per second."
    )
    torchdynamo: str | None = option(None, "Deprecated: use torch_compile_backend.")
    dispatch_batches: bool | None = option(None, "Deprecated: use dispatch_batches in accelerator_config.")
    split_batches: bool | None = option(None, "Deprecated: use split_batches in accelerator_config.")
    push_to_hub_model_id: str | None = option(None, "Deprecated: use hub_model_id.")
    push_to_hub_organization: str | None = option(None, "Deprecated: use hub_model_id as organization/name.")
    push_to_hub_token: str | None = option(None, "Deprecated: use hub_token.")
    tpu_metrics_debug: bool = option(False, "Deprecated: refused; TPUs are not supported.")
    past_index: int = option(-1, "Deprecated: refused; passing a model its past outputs is not supported.")
    tp_size: int = option(0, "Deprecated: refused; tensor parallelism is not supported.")
    save_safetensors: bool = option(True, "Deprecated: no effect; weights are always saved as safetensors.")
    fp16_backend: str = option("auto", "Deprecated: no effect; autocast is torch's own.")
    half_precision_backend: str = option("auto", "Deprecated: no effect; autocast is torch's own.")
    fp16_opt_level: str = option("O1", "Deprecated: no effect; it was for Apex.")
    jit_mode_eval: bool = option(False, "Deprecated: use torch_compile; evaluation runs without it.")
    use_ipex: bool = option(False, "Deprecated: no effect; torch includes the features of Intel's extension.")
    tpu_num_cores: int | None = option(None, "Deprecated: no effect; TPUs are not supported.")
    mp_parameters: str = option("", "Deprecated: no effect; it was for SageMaker.")
    ray_scope: str = option("last", "Deprecated: use the argument scope of hyperparameter_search.")
    use_legacy_prediction_loop: bool = option(False, "Deprecated: no effect; there is only one prediction loop.")
    fsdp_min_num_params: int = option(0, "Deprecated: use min_num_params in fsdp_config.")
    fsdp_transformer_layer_cls_to_wrap: str | None = option(
        None, "Deprecated: use transformer_layer_cls_to_wrap in fsdp_config."
    )


# Shown only where they are set.
OLD_NAMES = frozenset(
    each.name for kind in (RemovedArguments, DeprecatedArguments) for each in dataclasses.fields(kind)
)

_RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "torchdynamo": "torch_compile_backend",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
}

# flag -> the argument that it has become, and the value it stands for
_BECAME: dict[str, tuple[str, Any]] = {
    "no_cuda": ("use_cpu", True),
    "use_mps_device": ("accelerator", "mps"),
    "adafactor": ("optim", "adafactor"),
    "group_by_length": ("train_sampling_strategy", "group_by_length"),
    "include_tokens_per_second": ("include_num_input_tokens_seen", "all"),
    "tpu_metrics_debug": ("debug", ["tpu_metrics_debug"]),
}

# what has no effect any more -> why nothing is lost
_WITHOUT_EFFECT = {
    "save_safetensors": "Weights are always saved as safetensors, which can be read without running code.",
    "fp16_backend": "Autocast is torch's own.",
    "half_precision_backend": "Autocast is torch's own.",
    "fp16_opt_level": "It was for Apex; fp16=True is torch's own.",
    "jit_mode_eval": "Evaluation runs without it; torch_compile=True compiles the model.",
    "use_ipex": "torch includes the features of Intel's extension.",
    "tpu_num_cores": "TPUs are not supported.",
    "mp_parameters": "It was for SageMaker.",
    "ray_scope": "Pass scope=... to hyperparameter_search.",
    "use_legacy_prediction_loop": "There is one prediction loop.",
    "fsdp_min_num_params": "Give fsdp_config min_num_params.",
    "fsdp_transformer_layer_cls_to_wrap": "Give fsdp_config transformer_layer_cls_to_wrap.",
}

_NO_APEX = "Apex is not used. Leave it out: fp16=True is torch's own autocast"

# field -> values that are refused, why, what to do instead
_REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "past_index": (
        lambda value: value >= 0,
        "the Trainer does not pass a model its outputs from the previous batch. Override compute_loss to do so",
    ),
    "tp_size": (lambda value: value > 1, "each process of this release has the whole model. Leave it out"),
    "fp16_backend": (lambda value: value == "apex", _NO_APEX),
    "half_precision_backend": (lambda value: value == "apex", _NO_APEX),
}  # fmt: skip


def apply_deprecated(args: Any) -> None:
    """Moves the values of deprecated fields of `args` to their new fields, with a `FutureWarning` for each.

    Raises `ValueError` where the old name and the new one ask for different things, or for what cannot be had.
    """
    for name, (is_refused, why) in _REFUSED.items():
        if is_refused(value := getattr(args, name)):
            raise MisconfigurationException(f"{name}={value!r} is not supported: {why}.")
    for old, new in _RENAMED.items():
        value = getattr(args, old)
        if value is not None:
            _warn(args, old, f"Use `{new}`.")
            _move(args, old, value, new)
    for old, (new, value) in _BECAME.items():
        if getattr(args, old):
            _warn(args, old, _instead(old, new, value))
            _move(args, old, value, new)
            setattr(args, old, False)
    for name, why in _WITHOUT_EFFECT.items():
        if getattr(args, name) != (default := _default(args, name)):
            _warn(args, name, f"It has no effect. {why}")
            setattr(args, name, default)
    _apply_lists_and_settings(args)
    if args.warmup_ratio is not None:
        _apply_warmup_ratio(args)
    if args.logging_dir is not None and not isinstance(args.logging_dir, _Noted):
        _warn(args, "logging_dir", "Set the environment variable `TENSORBOARD_LOGGING_DIR`.")
        args.logging_dir = _Noted(args.logging_dir)


def _instead(old: str, new: str, value: Any) -> str:
    if old == "use_mps_device":
        return "mps is used by default where it is available; `accelerator='mps'` requires it."
    return f"Use `{new}`." if value is True else f"Use `{new}={value!r}`."


def _apply_lists_and_settings(args: Any) -> None:
    """Moves the values of deprecated fields that are now a part of another field."""
    if args.include_inputs_for_metrics:
        _warn(args, "include_inputs_for_metrics", "Use `include_for_metrics=['inputs']`.")
        args.include_for_metrics = sorted({*args.include_for_metrics, "inputs"})
        args.include_inputs_for_metrics = False
    for name in ("dispatch_batches", "split_batches"):
        if (value := getattr(args, name)) is not None:
            _warn(args, name, f"Use `accelerator_config={{{name!r}: {value!r}}}`.")
            setattr(args.accelerator_config, name, value)
            setattr(args, name, None)
    if args.push_to_hub_organization is not None:
        _warn(args, "push_to_hub_organization", "Use `hub_model_id`, as organization/name.")
        name = args.hub_model_id or os.path.basename(os.path.normpath(args.output_dir))
        args.hub_model_id = f"{args.push_to_hub_organization}/{name.rpartition('/')[2]}"
        args.push_to_hub_organization = None


def _apply_warmup_ratio(args: Any) -> None:
    if not 0 <= args.warmup_ratio <= 1:
        raise ValueError(f"warmup_ratio={args.warmup_ratio!r} is not accepted: it must be between 0 and 1.")
    _warn(args, "warmup_ratio", "Use `warmup_steps` with a value below 1.")
    if 0 <= args.warmup_steps < 1:  # as ever, a number of steps takes precedence over the ratio
        args.warmup_steps = min(args.warmup_ratio, math.nextafter(1.0, 0.0))  # 1 would be one step
    args.warmup_ratio = None


class _Noted(str):
    """Marks a value that the user was already warned about."""


def _default(args: Any, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(args) if field.name == name)


def _move(args: Any, old: str, value: Any, new: str) -> None:
    current = getattr(args, new)
    if current not in (_default(args, new), value) and current != []:
        raise ValueError(
            f"{old} sets {new}={value!r}, but {new}={current!r} was given as well. Leave out {old}, which is "
            "deprecated."
        )
    setattr(args, new, value)
    setattr(args, old, None)


def _warn(args: Any, old: str, instead: str) -> None:
    if process_number():  # all of several processes have the same arguments
        return
    warnings.warn(
        f"`{old}` is deprecated and will be removed in mps_trainer {DROPPED_IN}. {instead}",
        FutureWarning,
        stacklevel=_callers_level(args),
    )


def _callers_level(args: Any) -> int:
    """Returns the stacklevel with which `_warn` points to the line that built the arguments.

    Between the two lie the methods of `args`, which a subclass may have extended, and whoever builds on request.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_locals.get(next(iter(frame.f_code.co_varnames), "")) is args
        or frame.f_globals.get("__name__") in ("dataclasses", "transformers.hf_argparser")
    ):
        level, frame = level + 1, frame.f_back
    return level
