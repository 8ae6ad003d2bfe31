"""Converts and checks the values of the arguments as their fields declare it, and checks their combinations."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..utils.size import MOST_ITEMS, is_too_large
from .choices import SchedulerType
from .fields import Declaration
from .readers import refuse

FOLLOW_METRIC = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
_FEWEST_AT_MOST = 64  # workers that wait for a network or a disk may be many on few processors
_NEEDS_WORKERS = "left out unless dataloader_num_workers is above 0"


def coerce(args: Any, declared: Mapping[str, Declaration]) -> None:
    """Converts each declared field of `args` to its type if the conversion is unambiguous.

    Raises:
        ValueError: for a value without a reading as that type, or that the field does not accept.
    """
    for name, field in declared.items():
        value = getattr(args, name)
        if is_too_large(value):
            raise refuse(name, value, f"a value of at most {MOST_ITEMS} items")
        if value is not None or not field.optional:
            setattr(args, name, field.convert(value))


def check_values(args: Any) -> None:
    """Raises ValueError for values that a field's declaration cannot exclude, and for fields that conflict."""
    # more can only be a slip of the finger: they start until memory is used up
    most = max(_FEWEST_AT_MOST, 4 * (os.cpu_count() or 1))
    if args.dataloader_num_workers > most:
        accepted = f"at most {most} on this machine, because each is a Python process with its own memory"
        raise refuse("dataloader_num_workers", args.dataloader_num_workers, accepted)
    if args.max_steps != -1 and args.max_steps < 1:
        raise refuse("max_steps", args.max_steps, "at least 1, or -1 to train for num_train_epochs")
    for path in (folder := Path(args.output_dir), *folder.parents):
        if os.path.exists(path) and not os.path.isdir(path):
            raise refuse("output_dir", args.output_dir, f"a folder, or a new name for one; {path} is a file")
    for name in ("logging", "eval", "save"):
        if getattr(args, f"{name}_strategy") == "steps" and not getattr(args, f"{name}_steps"):
            raise refuse(f"{name}_steps", getattr(args, f"{name}_steps"), f"above 0 with {name}_strategy='steps'")
    for one, other in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if getattr(args, one) and getattr(args, other):
            raise MisconfigurationException(f"{one}=True and {other}=True exclude each other: set one of them.")
    if args.chunked_attention and args.torch_compile:
        raise MisconfigurationException(
            "chunked_attention=True does not go with torch_compile=True, which would compile each block of attention "
            "anew for each length. Leave one of them out."
        )
    if unknown := set(args.include_for_metrics) - {"inputs", "loss"}:  # transformers ignores them without a word
        words = ", ".join(sorted(map(str, unknown)))
        warnings.warn(f"include_for_metrics: {words} is unknown and ignored. Use inputs and loss.", stacklevel=2)
    if args.dataloader_num_workers == 0:
        if args.dataloader_prefetch_factor is not None:
            raise refuse("dataloader_prefetch_factor", args.dataloader_prefetch_factor, _NEEDS_WORKERS)
        if args.dataloader_persistent_workers:
            raise refuse("dataloader_persistent_workers", True, _NEEDS_WORKERS)
    if args.lr_scheduler_type in FOLLOW_METRIC and args.eval_strategy == "no":
        raise refuse("lr_scheduler_type", args.lr_scheduler_type.value, "used with an eval_strategy other than 'no'")
    if args.save_strategy == "best" and args.eval_strategy == "no":
        raise refuse("save_strategy", "best", "used with an eval_strategy other than 'no'")
    if args.load_best_model_at_end and args.save_strategy != "best":
        _check_best_is_saved(args)


def _check_best_is_saved(args: Any) -> None:
    if args.eval_strategy != args.save_strategy or args.eval_strategy == "no":
        raise MisconfigurationException(
            "load_best_model_at_end=True is not accepted with "
            f"eval_strategy='{args.eval_strategy.value}' and "
            f"save_strategy='{args.save_strategy.value}': the best model can only be loaded if each evaluation has "
            "its checkpoint. Give both the same value, steps or epoch, or use save_strategy='best'."
        )
    if args.eval_strategy == "steps":
        mixed = (args.eval_steps < 1) != (args.save_steps < 1)
        # fractions of all steps in millionths, because they are floats
        unit = 1_000_000 if args.eval_steps < 1 else 1
        if mixed or round(args.save_steps * unit) % (round(args.eval_steps * unit) or 1):
            raise MisconfigurationException(
                f"load_best_model_at_end=True is not accepted with save_steps={args.save_steps} and "
                f"eval_steps={args.eval_steps}: save_steps must be a multiple of eval_steps, and both fractions or "
                "both numbers of steps."
            )
