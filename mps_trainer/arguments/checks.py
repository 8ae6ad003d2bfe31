"""Converts and checks the values of the arguments. The fields declare their choices and bounds.

Every refusal is a `ValueError` that names the field, the value, and what is accepted.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from ..devices.accelerators.base import read_devices
from ..utils.size import MOST_ITEMS, is_too_large, parts_of_value
from ..utils.text import shown
from .accelerator_config import accelerator_config
from .choices import DebugOption, IntervalStrategy, SchedulerType, of_transformers
from .fields import Bounds, bounds_of
from .groups import ArgumentGroups

_FIELDS = {field.name: field for field in dataclasses.fields(ArgumentGroups)}


def _enum_of(hint: Any) -> type[Enum] | None:
    """Returns the enum in a hint such as `IntervalStrategy | str`, or None."""
    for kind in typing.get_args(hint):
        # Python 3.10 takes list[...] for a type as well
        if isinstance(kind, type) and typing.get_origin(kind) is None and issubclass(kind, Enum):
            return kind
    return None


CHOICES: dict[str, type[Enum]] = {
    **{
        name: enum
        for name, hint in typing.get_type_hints(ArgumentGroups).items()
        if (enum := _enum_of(hint)) is not None
    },
    "evaluation_strategy": IntervalStrategy,
}

# The words that argparse accepts, so that a file or a script may give no others.
WORDS: dict[str, list[str]] = {
    name: field.metadata["choices"] for name, field in _FIELDS.items() if "choices" in field.metadata
}

BOUNDS: dict[str, Bounds] = {
    name: bounds for name, field in _FIELDS.items() if (bounds := bounds_of(field)) is not None
}

_LARGEST = 2**63 - 1  # the largest length or counter of Python's iterators and of torch

_FLAGS = {  # those of HfArgumentParser
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}


def refuse(name: str, value: Any, accepted: str) -> ValueError:
    return ValueError(f"{name}={shown(value)} is not accepted: it must be {accepted}.")


def coerce(args: Any, hints: dict[str, Any]) -> None:
    """Converts each field of `args` to the type of its hint if the conversion is unambiguous.

    A YAML file, for one, has `2e-5` as text and `no` as False.
    """
    for name, hint in hints.items():
        value = getattr(args, name)
        if is_too_large(value, parts_of_value):
            raise refuse(name, value, f"a value of at most {MOST_ITEMS} items")
        if value is None and type(None) in typing.get_args(hint) and name != "accelerator_config":
            continue
        kind = _kind(hint)
        if name in READERS:
            setattr(args, name, READERS[name](name, value))
        elif kind in (bool, int, float):
            setattr(args, name, _number(name, value, kind))
        elif kind is str:
            _text(name, value)


def check_values(args: Any) -> None:
    """Raises ValueError for the first field with an invalid value."""
    for name, words in WORDS.items():
        value = getattr(args, name)
        if value is not None and value not in words:
            raise refuse(name, value, "one of " + ", ".join(words))
    for name, bounds in BOUNDS.items():
        value = getattr(args, name)
        if value is not None and value not in bounds:
            raise refuse(name, value, str(bounds))
        if isinstance(value, int) and value > _LARGEST:
            raise refuse(name, value, f"at most {_LARGEST}")
    # more can only be a slip of the finger: they start until memory is used up
    most = max(_FEWEST_AT_MOST, 4 * (os.cpu_count() or 1))
    if args.dataloader_num_workers > most:
        raise refuse(
            "dataloader_num_workers",
            args.dataloader_num_workers,
            f"at most {most} here: four for each of the {os.cpu_count() or 1} processors, and {_FEWEST_AT_MOST} on a "
            "small machine, because each is a Python process with its own memory",
        )
    read_devices(args.devices)
    if args.max_steps > _LARGEST:
        raise refuse("max_steps", args.max_steps, f"at most {_LARGEST}")
    if args.max_steps != -1 and args.max_steps < 1:
        raise refuse("max_steps", args.max_steps, "at least 1, or -1 to train for num_train_epochs")
    for name in ("logging_steps", "eval_steps", "save_steps"):
        value = getattr(args, name)
        if value is not None and value > 1 and value != int(value):
            raise refuse(name, value, "a whole number of steps, or below 1 for a fraction of all steps")
    for path in _with_parents(args.output_dir):
        if os.path.exists(path) and not os.path.isdir(path):
            raise refuse("output_dir", args.output_dir, f"a folder, or a new name for one; {path} is a file")


_FEWEST_AT_MOST = 64  # workers that wait for a network or a disk may be many on few processors


def check_combinations(args: Any) -> None:
    """Raises ValueError for fields that conflict."""
    for name in ("logging", "eval", "save"):
        if getattr(args, f"{name}_strategy") == "steps" and not getattr(args, f"{name}_steps"):
            raise refuse(f"{name}_steps", getattr(args, f"{name}_steps"), f"above 0 with {name}_strategy='steps'")
    for one, other in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if getattr(args, one) and getattr(args, other):
            raise ValueError(f"{one}=True and {other}=True exclude each other: set one of them.")
    for name in args.include_for_metrics:
        if name not in ("inputs", "loss"):
            raise refuse("include_for_metrics", args.include_for_metrics, "a list of inputs and loss, or one of them")
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


FOLLOW_METRIC = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
_NEEDS_WORKERS = "left out unless dataloader_num_workers is above 0"


def _check_best_is_saved(args: Any) -> None:
    if args.eval_strategy != args.save_strategy or args.eval_strategy == "no":
        raise ValueError(
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
            raise ValueError(
                f"load_best_model_at_end=True is not accepted with save_steps={args.save_steps} and "
                f"eval_steps={args.eval_steps}: save_steps must be a multiple of eval_steps, and both fractions or "
                "both numbers of steps."
            )


def _choice(name: str, value: Any) -> Enum:
    kind: Any = CHOICES[name]
    asked = "no" if value is False else getattr(value, "value", value)  # YAML reads a bare `no` as false
    try:
        return of_transformers(kind(asked))
    except ValueError:
        raise refuse(name, value, "one of " + ", ".join(str(choice.value) for choice in kind)) from None


def _one_of(name: str, value: Any, words: dict[str, bool | None]) -> str:
    """Returns a word of `words`, or the word that a boolean stands for."""
    flag = _FLAGS.get(str(value).lower())
    for word, meant in words.items():
        if value == word or (flag is not None and flag is meant):
            return word
    raise refuse(name, value, "one of " + ", ".join(words) + ", or true or false")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(name, value, "text")
    return value


def _debug_options(name: str, value: Any) -> list[Enum]:
    words = value.split() if isinstance(value, str) else value
    try:
        return [of_transformers(DebugOption(getattr(word, "value", word))) for word in words or []]
    except (ValueError, TypeError):
        raise refuse(name, value, "one or more of " + ", ".join(option.value for option in DebugOption)) from None


def _mapping(name: str, value: Any) -> dict:
    mapping = value
    if isinstance(value, str):
        try:
            mapping = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise refuse(name, value, f"a JSON object ({error})") from None
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        raise refuse(name, value, "a dictionary whose keys are text, or a JSON object on the command line")
    return mapping


def read_dictionary(name: str, value: Any) -> Any:
    """Returns a JSON object as a dictionary with numbers and booleans parsed, or `value` if it is not JSON."""
    return _typed(_mapping(name, value)) if isinstance(value, str) and value.startswith("{") else value


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _typed(each) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdigit():
        return int(value)
    return float(value) if value.replace(".", "", 1).isdigit() else value


def _names(name: str, value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(item, str) and item for item in names):
        raise refuse(name, value, "a name, or a list of names")
    return list(names)


def _path(name: str, value: Any) -> str | bool:
    if name == "resume_from_checkpoint" and isinstance(value, bool):
        return value  # for Trainer.train(), which takes True for the newest checkpoint
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path or not _encodable(path):
        raise refuse(name, value, "a path")
    return path


def _encodable(path: str) -> bool:
    try:
        return bool(os.fsencode(path))
    except UnicodeEncodeError:
        return False


def _kind(hint: Any) -> Any:
    """Returns `hint` without None, if that leaves a single type."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        return members[0] if len(members) == 1 else None
    return hint


def _number(name: str, value: Any, kind: type) -> bool | int | float:
    accepted = {bool: "true or false", int: "a whole number", float: "a finite number"}[kind]
    if kind is bool:
        flag = _FLAGS.get(str(value).lower())  # as text, which covers numpy's bool too
        if flag is None:
            raise refuse(name, value, accepted)
        return flag
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        raise refuse(name, value, accepted) from None
    if not math.isfinite(number) or (kind is int and number != int(number)):
        raise refuse(name, value, accepted)
    if isinstance(value, int):
        return value
    return _whole(value, number) if kind is int else number


def _whole(value: Any, number: float) -> int:
    try:
        return int(value)  # exact above 2**53, where `number` is not
    except ValueError:
        return int(number)  # "1e3" is a whole number that int() does not read


def _with_parents(path: str) -> Iterable[str]:
    while path:
        yield path
        parent = os.path.dirname(path)
        path = "" if parent == path else parent


def _whole_steps(name: str, value: Any) -> int:
    """Returns a number of steps as an integer, which transformers requires."""
    if isinstance(value, float):
        raise refuse(name, value, "a whole number, not written as a fraction")
    return int(_number(name, value, int))


def _unchanged(name: str, value: Any) -> Any:
    return value


# What makes the value of a field that is not just a flag, a number or text.
READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(CHOICES, _choice),
    **dict.fromkeys(("output_dir", "resume_from_checkpoint", "logging_dir"), _path),
    **dict.fromkeys(("label_names", "report_to", "include_for_metrics"), _names),
    **dict.fromkeys(
        (
            "lr_scheduler_kwargs",
            "activation_checkpointing_kwargs",
            "gradient_checkpointing_kwargs",
            "liger_kernel_config",
        ),
        _mapping,
    ),
    "accelerator_config": lambda name, value: accelerator_config(value),
    "debug": _debug_options,
    "devices": lambda name, value: list(value) if isinstance(value, tuple) else value,  # as JSON has it
    "include_num_input_tokens_seen": lambda name, value: _one_of(
        name, value, {"all": True, "non_padding": None, "no": False}
    ),
    "torch_empty_cache_steps": _whole_steps,
    "optim_target_modules": lambda name, value: value if isinstance(value, str) and value else _names(name, value),
    "trackio_static_space_id": lambda name, value: value if value is False else _text(name, value),
    **dict.fromkeys(("fsdp", "fsdp_config"), _unchanged),  # see sharding.py
    **dict.fromkeys(("deepspeed", "parallelism_config"), _unchanged),  # refused whatever they say
}
