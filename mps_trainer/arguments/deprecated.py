"""Names that scripts written for earlier releases of transformers still pass.

Each does what it always did, says once what to write instead, and is then spent: its value has moved to the new
name, so that copying the arguments does not warn again. Only logging_dir has no new name among the arguments and keeps
its value: `dataclasses.replace` stays silent about it, a file or a dictionary that still names it does not.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from .choices import IntervalStrategy
from .fields import option

DROPPED_IN = "1.0"


@dataclass
class DeprecatedArguments:
    use_mps_device: bool = option(False, "Deprecated: mps is chosen by itself; accelerator=mps insists on it.")
    no_cuda: bool = option(False, "Deprecated: use_cpu.")
    evaluation_strategy: str | None = option(
        None, "Deprecated: eval_strategy.", choices=[choice.value for choice in IntervalStrategy]
    )
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
            _warn(args, old, f"Use `{new}`.")
            _move(args, old, value, new)
    if args.warmup_ratio is not None:
        _warn(args, "warmup_ratio", "Use `warmup_steps` with a value below 1.")
        if not 0 <= args.warmup_ratio <= 1:
            raise ValueError(f"warmup_ratio={args.warmup_ratio!r} is not accepted: it must be between 0 and 1.")
        if 0 <= args.warmup_steps < 1:  # as ever, a number of steps takes precedence over the ratio
            args.warmup_steps = min(args.warmup_ratio, math.nextafter(1.0, 0.0))  # 1 would be one step
        args.warmup_ratio = None
    if args.no_cuda:
        _warn(args, "no_cuda", "Use `use_cpu`.")
        args.use_cpu, args.no_cuda = True, False
    if args.use_mps_device:
        _warn(
            args, "use_mps_device", "mps is used by default where it is available; `accelerator='mps'` insists on it."
        )
        _move(args, "use_mps_device", "mps", "accelerator")
        args.use_mps_device = False
    if args.logging_dir is not None and not isinstance(args.logging_dir, _Noted):
        _warn(args, "logging_dir", "Set the environment variable `TENSORBOARD_LOGGING_DIR`.")
        args.logging_dir = _Noted(args.logging_dir)


class _Noted(str):
    """A value that has been warned about."""


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


def _warn(args: Any, old: str, instead: str) -> None:
    warnings.warn(
        f"`{old}` is deprecated and will be removed in mps_trainer {DROPPED_IN}. {instead}",
        FutureWarning,
        stacklevel=_callers_level(args),
    )


def _callers_level(args: Any) -> int:
    """The stacklevel, for `_warn`, of the line that asked for the arguments.

    Between the two lie the methods of `args`, which a subclass may have extended, and whoever builds on request.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_locals.get(next(iter(frame.f_code.co_varnames), "")) is args
        or frame.f_globals.get("__name__") in ("dataclasses", "transformers.hf_argparser")
    ):
        level, frame = level + 1, frame.f_back
    return level
