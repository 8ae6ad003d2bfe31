"""Names that scripts written for earlier releases of transformers still pass.

Each does what it always did, says once what to write instead, and is then spent: its value has moved to the new
name, so that copying the arguments does not warn again.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass
from typing import Any

from .fields import option

DROPPED_IN = "1.0"


@dataclass
class DeprecatedArguments:
    use_mps_device: bool = option(False, "Deprecated: mps is chosen by itself; accelerator=mps insists on it.")
    no_cuda: bool = option(False, "Deprecated: use_cpu.")
    evaluation_strategy: str | None = option(None, "Deprecated: eval_strategy.")
    per_gpu_train_batch_size: int | None = option(None, "Deprecated: per_device_train_batch_size.")
    per_gpu_eval_batch_size: int | None = option(None, "Deprecated: per_device_eval_batch_size.")
    warmup_ratio: float | None = option(None, "Deprecated: warmup_steps with a value below 1.")
    logging_dir: str | None = option(None, "Deprecated: the environment variable TENSORBOARD_LOGGING_DIR.")


_RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
}


def apply_deprecated(args: Any) -> None:
    """Moves the values of deprecated fields of `args` to where they belong now; one `FutureWarning` for each used.

    Raises `ValueError` where the old name and the new one ask for different things.
    """
    for old, new in _RENAMED.items():
        value = getattr(args, old)
        if value is not None:
            _warn(old, f"Use `{new}`.")
            _move(args, old, value, new)
    if args.warmup_ratio is not None:
        _warn("warmup_ratio", "Use `warmup_steps` with a value below 1.")
        if not 0 <= args.warmup_ratio <= 1:
            raise ValueError(f"warmup_ratio={args.warmup_ratio!r} is not accepted: it must be between 0 and 1.")
        if args.warmup_steps == 0:  # as ever, a number of steps takes precedence over the ratio
            args.warmup_steps = min(args.warmup_ratio, math.nextafter(1.0, 0.0))  # 1 would be one step
        args.warmup_ratio = None
    if args.no_cuda:
        _warn("no_cuda", "Use `use_cpu`.")
        args.use_cpu, args.no_cuda = True, False
    if args.use_mps_device:
        _warn("use_mps_device", "mps is used by default where it is available; `accelerator='mps'` insists on it.")
        _move(args, "use_mps_device", "mps", "accelerator")
        args.use_mps_device = False
    if args.logging_dir is not None:
        _warn("logging_dir", "Set the environment variable `TENSORBOARD_LOGGING_DIR`.")


def _move(args: Any, old: str, value: Any, new: str) -> None:
    default = next(field.default for field in dataclasses.fields(args) if field.name == new)
    current = getattr(args, new)
    if current not in (default, value):
        raise ValueError(
            f"{old} asks for {new}={value!r}, but {new}={current!r} was given as well. "
            f"Leave out {old}, which is deprecated."
        )
    setattr(args, new, value)
    setattr(args, old, None)


def _warn(old: str, instead: str) -> None:
    warnings.warn(
        f"`{old}` is deprecated and will be removed in mps_trainer {DROPPED_IN}. {instead}",
        FutureWarning,
        stacklevel=5,  # this function, apply_deprecated, __post_init__, the generated __init__, the caller
    )
