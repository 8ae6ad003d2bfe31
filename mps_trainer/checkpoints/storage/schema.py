"""Checks the types of values in a checkpoint's files, which may have been edited."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .files import damaged

_LARGEST_COUNT = 2**63  # an int of Python can be larger, and no generator, tensor or range takes it
_LARGEST = 1e300  # Python's int has no bound, and float() has

Kind = tuple[Callable[[Any], bool], str]  # the test of a value, and the words for what passes it


def check(path: str, values: Any, kinds: Mapping[str, Kind], required: Iterable[str] = (), within: str = "") -> None:
    """Raises MisconfigurationException if `values` of the file at `path` do not have these types.

    Names that are not in `kinds` may have any value.

    Args:
        within: the name of the table in the file, for the message.
    """
    if not isinstance(values, dict):
        raise damaged(path, ValueError(f"{within or 'it'} is {shown(values)} and not a dictionary"))
    for name in required:
        if name not in values:
            raise damaged(path, ValueError(f"{within} has no {name}" if within else f"{name} is missing"))
    for name, (is_right, expected) in kinds.items():
        if name in values and not is_right(values[name]):
            of = f"{within}.{name}" if within else name
            raise damaged(path, ValueError(f"{of} is {shown(values[name])}, and must be {expected}"))


def shown(value: Any) -> str:
    """Returns `value` in at most 50 characters of one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an int of more than 4,300 digits, for one
        return f"of type {type(value).__name__}"
    return text if len(text) <= 50 else f"{text[:47]}..."


def first_line(error: BaseException) -> str:
    return "".join(str(error).splitlines()[:1]) or type(error).__name__


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_COUNT


def is_size(value: Any) -> bool:
    return is_count(value) and value > 0


def is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2 * _LARGEST_COUNT


def is_number(value: Any) -> bool:
    """Returns True for a number that float() takes, nan and infinity among them."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST


def is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def is_amount(value: Any) -> bool:
    return is_finite(value) and value >= 0


def or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


COUNT: Kind = (is_count, "a whole number of at least 0")
AMOUNT: Kind = (is_amount, "a number of at least 0")
NUMBER: Kind = (is_number, "a number")
FLAG: Kind = (is_flag, "true or false")
