"""Deprecated names of earlier releases, and one that still works without a warning.

Each deprecated name does what it always did, says once what to write instead, and is then spent: its value has moved
to the new name, so that copying the arguments does not warn again. Only logging_dir has no new name among the
arguments and keeps its value.

The Trainer's own deprecated name, `tokenizer`, is here too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..devices.launchers import process_number
from ..errors import MisconfigurationException
from .choices import IntervalStrategy
from .fields import Declaration, NotSupported, declarations, default_of, option
from .readers import read_choice, read_path

DROPPED_IN = "1.0"
NO_APEX = NotSupported("Apex is not used", "Leave it out: fp16=True is torch's own autocast", ("apex",))


@dataclass(kw_only=True)
class DeprecatedArguments:
    """The names that transformers 5 or this package has removed, which are shown only where they are set."""

    overwrite_output_dir: bool = option(
        False, "Train from the beginning even if output_dir has checkpoints of an earlier run."
    )
    use_mps_device: bool | None = option(
        None,
        "Deprecated: mps is the default where it is available; accelerator=mps requires it.",
        nargs="?",  # argparse then reads the flag alone as True, as transformers' parser does for `bool`
        const=True,
        becomes={"accelerator": "mps"},
    )
    no_cuda: bool = option(False, "Deprecated: use use_cpu.", becomes={"use_cpu": True})
    evaluation_strategy: str | None = option(
        None,
        "Deprecated: use eval_strategy.",
        choices=[choice.value for choice in IntervalStrategy],
        read=functools.partial(read_choice, IntervalStrategy),
        becomes="eval_strategy",
    )
    per_gpu_train_batch_size: int | None = option(
        None, "Deprecated: use per_device_train_batch_size.", becomes="per_device_train_batch_size"
    )
    per_gpu_eval_batch_size: int | None = option(
        None, "Deprecated: use per_device_eval_batch_size.", becomes="per_device_eval_batch_size"
    )
    warmup_ratio: float | None = option(None, "Deprecated: use warmup_steps with a value below 1.", ge=0, le=1)
    logging_dir: str | None = option(
        None, "Deprecated: use the environment variable TENSORBOARD_LOGGING_DIR.", read=read_path
    )
    adafactor: bool = option(False, "Deprecated: use optim=adafactor.", becomes={"optim": "adafactor"})
    group_by_length: bool = option(
        False,
        "Deprecated: use train_sampling_strategy=group_by_length.",
        becomes={"train_sampling_strategy": "group_by_length"},
    )
    include_inputs_for_metrics: bool = option(False, "Deprecated: use include_for_metrics=inputs.")
    include_tokens_per_second: bool = option(
        False,
        "Deprecated: use include_num_input_tokens_seen, which also logs tokens per second.",
        becomes={"include_num_input_tokens_seen": "all"},
    )
    torchdynamo: str | None = option(None, "Deprecated: use torch_compile_backend.", becomes="torch_compile_backend")
    dispatch_batches: bool | None = option(None, "Deprecated: use dispatch_batches in accelerator_config.")
    split_batches: bool | None = option(None, "Deprecated: use split_batches in accelerator_config.")
    push_to_hub_model_id: str | None = option(None, "Deprecated: use hub_model_id.", becomes="hub_model_id")
    push_to_hub_organization: str | None = option(None, "Deprecated: use hub_model_id as organization/name.")
    push_to_hub_token: str | None = option(None, "Deprecated: use hub_token.", becomes="hub_token")
    tpu_metrics_debug: bool = option(
        False, "Deprecated: refused; TPUs are not supported.", becomes={"debug": ["tpu_metrics_debug"]}
    )
    past_index: int = option(
        -1,
        "Deprecated: refused; passing a model its past outputs is not supported.",
        refused=NotSupported(
            "the Trainer does not pass a model its outputs from the previous batch",
            "Override compute_loss to do so",
            unless=(-1,),
        ),
    )
    tp_size: int = option(
        0,
        "Deprecated: refused; tensor parallelism is not supported.",
        refused=NotSupported("each process of this release has the whole model", "Leave it out", unless=(0, 1)),
    )
    save_safetensors: bool = option(
        True, "Deprecated: no effect; weights are always saved as safetensors.", becomes={}
    )
    fp16_backend: str = option("auto", "Deprecated: no effect; autocast is torch's own.", becomes={}, refused=NO_APEX)
    half_precision_backend: str = option(
        "auto", "Deprecated: no effect; autocast is torch's own.", becomes={}, refused=NO_APEX
    )
    fp16_opt_level: str = option("O1", "Deprecated: no effect; it was for Apex.", becomes={})
    jit_mode_eval: bool = option(False, "Deprecated: use torch_compile; evaluation runs without it.", becomes={})
    use_ipex: bool = option(
        False, "Deprecated: no effect; torch includes the features of Intel's extension.", becomes={}
    )
    tpu_num_cores: int | None = option(None, "Deprecated: no effect; TPUs are not supported.", becomes={})
    mp_parameters: str = option("", "Deprecated: no effect; it was for SageMaker.", becomes={})
    ray_scope: str = option("last", "Deprecated: use the argument scope of hyperparameter_search.", becomes={})
    use_legacy_prediction_loop: bool = option(
        False, "Deprecated: no effect; there is only one prediction loop.", becomes={}
    )
    fast_dropout: bool = option(False, "Deprecated: no effect; dropout is torch's own.", becomes={})
    fsdp_min_num_params: int = option(0, "Deprecated: use min_num_params in fsdp_config.", becomes={})
    fsdp_transformer_layer_cls_to_wrap: str | None = option(
        None, "Deprecated: use transformer_layer_cls_to_wrap in fsdp_config.", becomes={}
    )


def apply_deprecated(args: Any, declared: Mapping[str, Declaration]) -> None:
    """Moves the values of deprecated fields of `args` to their new fields, with a `FutureWarning` for each.

    Raises:
        ValueError: if the old name and the new one ask for different things.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(args)}  # a subclass may have its own
    if args.use_mps_device is False and defaults["use_mps_device"] is None:  # False never meant the CPU
        if not args.use_cpu and args.accelerator == defaults["accelerator"] and not process_number():
            warnings.warn(
                "`use_mps_device=False` has no effect: mps is used where it is available. Set use_cpu=True to train "
                "on the CPU.",
                FutureWarning,
                stacklevel=_callers_level(args),
            )
        args.use_mps_device = None
    for name, field in declared.items():
        value = getattr(args, name)
        if field.becomes is None or value == defaults[name]:
            continue
        _warn(args, field)
        setattr(args, name, defaults[name])
        for new, meant in ({field.becomes: value} if isinstance(field.becomes, str) else field.becomes).items():
            if (current := getattr(args, new)) not in (defaults[new], meant, []):
                raise MisconfigurationException(
                    f"{name} sets {new}={meant!r}, but {new}={current!r} was given as well. Leave out {name}, which "
                    "is deprecated."
                )
            setattr(args, new, meant)
    if args.include_inputs_for_metrics:
        _warn(args, declared["include_inputs_for_metrics"])
        args.include_for_metrics = sorted({*args.include_for_metrics, "inputs"})
        args.include_inputs_for_metrics = False
    for name in ("dispatch_batches", "split_batches"):
        if (value := getattr(args, name)) is not None:
            _warn(args, declared[name])
            setattr(args.accelerator_config, name, value)
            setattr(args, name, None)
    if args.push_to_hub_organization is not None:
        _warn(args, declared["push_to_hub_organization"])
        name = args.hub_model_id or os.path.basename(os.path.normpath(args.output_dir))
        args.hub_model_id = f"{args.push_to_hub_organization}/{name.rpartition('/')[2]}"
        args.push_to_hub_organization = None
    default = defaults["warmup_ratio"]
    spent = None if default is None else 0.0  # a library with a field of this name has numbers in it
    if args.warmup_ratio not in (None, spent):
        is_given = args.warmup_ratio != default
        if is_given:
            _warn(args, declared["warmup_ratio"])
        if args.warmup_steps == 0 or (is_given and 0 < args.warmup_steps < 1):  # a number of steps takes precedence
            args.warmup_steps = _steps_of(args.warmup_ratio)
        args.warmup_ratio = spent
    if args.logging_dir is not None:
        _warn(args, declared["logging_dir"])


def with_new_names(args: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `values` for fields of `args`, with the new names of deprecated fields and a FutureWarning for each.

    The false value of a deprecated flag stands for the default of the new field, because an earlier trial of a search
    may have set the flag.
    """
    declared, found = declarations(DeprecatedArguments), {}
    defaults = {field.name: default_of(field) for field in dataclasses.fields(args)}
    for name, value in values.items():
        becomes: Any = {"warmup_steps": _steps_of(value)} if name == "warmup_ratio" else None
        if name in declared and becomes is None:
            becomes = declared[name].becomes
        if becomes is None:
            found[name] = value
            continue
        _warn(args, declared[name])
        if isinstance(becomes, str):
            found[becomes] = value
        else:
            found.update(becomes if value else {new: defaults[new] for new in becomes})
    return found


def _steps_of(ratio: float) -> float:
    """Returns the value of `warmup_steps` for a ratio. It is below 1, because 1 would be one step."""
    return min(ratio, math.nextafter(1.0, 0.0))


def processing_class_from(processing_class: Any, tokenizer: Any) -> Any:
    """Returns the one that a Trainer was given, and warns about the deprecated name `tokenizer`.

    Raises:
        MisconfigurationException: if the two differ.
    """
    if tokenizer is None:
        return processing_class
    warnings.warn(
        f"`Trainer(tokenizer=...)` is deprecated and will be removed in mps_trainer {DROPPED_IN}. "
        "Use `processing_class`.",
        FutureWarning,
        stacklevel=3,
    )
    if processing_class is not None and processing_class is not tokenizer:
        raise MisconfigurationException(
            "tokenizer and processing_class are the same argument: give only processing_class."
        )
    return tokenizer


def warn_of_tokenizer() -> None:
    """Warns about the deprecated attribute `tokenizer` of a Trainer."""
    warnings.warn(
        f"`Trainer.tokenizer` is deprecated and will be removed in mps_trainer {DROPPED_IN}. Use `processing_class`.",
        FutureWarning,
        stacklevel=3,
    )


def _warn(args: Any, field: Declaration) -> None:
    if process_number():  # all of several processes have the same arguments
        return
    ignored = " and ignored" if field.becomes == {} else ""
    warnings.warn(
        f"`{field.name}` is deprecated{ignored}, and will be "
        f"removed in mps_trainer {DROPPED_IN}: {field.help.removeprefix('Deprecated: ')}",
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
