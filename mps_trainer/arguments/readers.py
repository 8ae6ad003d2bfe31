"""Converts values of arguments: each function takes the name of a field and its value and returns what it means.

Every refusal is a `ValueError` that names the field, the value, and what is accepted.
"""

from __future__ import annotations

import functools
import json
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import Any

from ..devices.accelerators.base import Accelerator, read_devices
from ..errors import MisconfigurationException
from ..utils.bounded_file import MOST_BYTES, read_bytes
from ..utils.text import did_you_mean, shown
from .choices import DebugOption, of_transformers

LARGEST = 2**63 - 1  # the largest length or counter of Python's iterators and of torch

FLAGS = {  # those of HfArgumentParser
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}


def refuse(name: str, value: Any, accepted: str) -> MisconfigurationException:
    return MisconfigurationException(f"{name}={shown(value)} is not accepted: it must be {accepted}.")


def check_keys(source: str, keys: Iterable[Any], known: Collection[str]) -> None:
    """Raises MisconfigurationException for the first key of `source` that is not known."""
    for key in keys:
        if key not in known:
            name = shown(key, 60)
            hint = did_you_mean(name.strip("'"), known) or f" Known are {', '.join(known)}."
            raise MisconfigurationException(f"{source} has an unknown key {name}.{hint}")


def reader_of(hint: Any) -> Callable[[str, Any], Any]:
    """Returns the reader of values whose type is `hint`."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    members = [each for each in typing.get_args(hint) if each is not type(None)] if union else [hint]
    kinds = [typing.get_origin(each) or each for each in members]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return functools.partial(read_choice, kind)
    if dict in kinds:
        return read_mapping
    if list in kinds:
        return read_names
    if len(kinds) > 1:
        return read_any
    readers: dict[Any, Callable[[str, Any], Any]] = {
        bool: read_flag, int: read_integer, float: read_number, str: read_text_value,
    }  # fmt: skip
    return readers.get(kinds[0], read_any)


def read_any(name: str, value: Any) -> Any:
    return value


def read_text_value(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(name, value, "text")
    return value


def read_flag(name: str, value: Any) -> bool:
    is_number = isinstance(value, int) and value not in (0, 1)  # Python refuses to print the largest
    flag = None if is_number else FLAGS.get(str(value).lower())  # text covers numpy's bool too
    if flag is None:
        raise refuse(name, value, "true or false")
    return flag


def read_number(name: str, value: Any, accepted: str = "a finite number") -> int | float:
    """Returns a finite number; a YAML file, for one, has `2e-5` as text."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        raise refuse(name, value, accepted) from None
    if not math.isfinite(number):
        raise refuse(name, value, accepted)
    if isinstance(value, int) and value > LARGEST:
        raise refuse(name, value, f"at most {LARGEST}")
    return value if isinstance(value, int) else number


def read_integer(name: str, value: Any) -> int:
    accepted = "a whole number"
    number = read_number(name, value, accepted)
    if number != int(number):
        raise refuse(name, value, accepted)
    try:
        number = int(value)  # exact above 2**53, where `number` is not
    except ValueError:
        number = int(number)  # "1e3" is a whole number that int() does not read
    if number > LARGEST:
        raise refuse(name, value, f"at most {LARGEST}")
    return number


def read_integer_not_float(name: str, value: Any) -> int:
    if isinstance(value, float):
        raise refuse(name, value, "a whole number, not written as a fraction")
    return read_integer(name, value)


def read_steps(name: str, value: Any) -> int | float | None:
    """Returns a number of steps, or a fraction of all steps, which is below 1; None for a strategy without steps."""
    if value is None:  # Chronos gives it with save_strategy="no"
        return None
    number = read_number(name, value)
    if number > 1 and number != int(number):
        raise refuse(name, value, "a whole number of steps, or below 1 for a fraction of all steps")
    return int(number) if number >= 1 else number


def read_choice(kind: type[Enum], name: str, value: Any) -> Enum:
    asked = "no" if value is False else getattr(value, "value", value)  # YAML reads a bare `no` as false
    try:
        return of_transformers(kind(asked))
    except ValueError:
        raise refuse(name, value, "one of " + ", ".join(str(choice.value) for choice in kind)) from None


def read_debug_options(name: str, value: Any) -> list[Enum]:
    words = value.split() if isinstance(value, str) else value
    try:
        return [of_transformers(DebugOption(getattr(word, "value", word))) for word in words or []]
    except (ValueError, TypeError):
        raise refuse(name, value, "one or more of " + ", ".join(option.value for option in DebugOption)) from None


def read_token_count(name: str, value: Any) -> str:
    """Returns "all", "non_padding" or "no"; True stands for "all" and False for "no"."""
    if value in ("all", "non_padding", "no"):
        return str(value)
    flag = FLAGS.get(str(value).lower())
    if flag is None:
        raise refuse(name, value, "one of all, non_padding, no, or true or false")
    return "all" if flag else "no"


def read_space(name: str, value: Any) -> str | bool:
    return value if value is False else read_text_value(name, value)


def read_names(name: str, value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(item, str) and item for item in names):
        raise refuse(name, value, "a name, or a list of names")
    return list(names)


def read_module_names(name: str, value: Any) -> str | list[str]:
    return value if isinstance(value, str) and value else read_names(name, value)


def read_device_request(name: str, value: Any) -> Any:
    read_devices(value)
    return list(value) if isinstance(value, tuple) else value  # JSON has lists


def read_accelerator(name: str, value: Any) -> Any:
    """Returns the name of a device. Lightning's `accelerator` takes an object as well."""
    return value.name() if isinstance(value, Accelerator) else read_text_value(name, value)


def read_path(name: str, value: Any) -> str:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        if isinstance(path, str) and path and "\0" not in path and os.fsencode(path):
            return path
    except UnicodeEncodeError:
        pass
    raise refuse(name, value, "a path")


def read_checkpoint(name: str, value: Any) -> str | bool:
    return value if isinstance(value, bool) else read_path(name, value)  # Trainer.train() takes True for the newest


def read_mapping(name: str, value: Any) -> dict[str, Any]:
    """Returns a dictionary that is given itself or as JSON, whose texts are parsed where they are numbers or flags."""
    mapping = value
    if isinstance(value, str):
        try:
            mapping = _typed(json.loads(value))
        except (ValueError, RecursionError) as error:
            raise refuse(name, value, f"a JSON object ({error})") from None
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        raise refuse(name, value, "a dictionary whose keys are text, or a JSON object on the command line")
    return mapping


def read_mapping_or_file(name: str, value: Any) -> dict[str, Any]:
    """Returns a dictionary that is given itself, as JSON, or as the path of a JSON file."""
    if not isinstance(value, (str, os.PathLike)) or str(value).lstrip().startswith("{"):
        return read_mapping(name, value)
    path = read_path(name, value)
    try:
        text = read_bytes(path, MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise MisconfigurationException(
            f"{name}={shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}. Give it a dictionary, "
            "JSON, or the path of a JSON file."
        ) from error
    return read_mapping(f"{name}={shown(path)}: its content", text)


def read_json_of_library(name: str, value: Any) -> Any:
    """Returns a JSON object as a dictionary, or `value` if it is not JSON."""
    return read_mapping(name, value) if isinstance(value, str) and value.startswith("{") else value


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _typed(each) for key, each in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdecimal():
        return int(value)
    return float(value) if value.replace(".", "", 1).isdecimal() else value
