"""Replaces transformers' own functions in its registries of attention and of masks for a while, and no others.

A model looks up the function of its attention in such a registry, where users register functions of their own, also
under the names of transformers'. A lookup is replaced, not an entry: what is registered during a run counts at once,
and stays.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..utils.attributes import attributes_replaced

# Kinds of attention, and the names of transformers' functions for them.
MASKS = {"sdpa": "sdpa_mask", "eager": "eager_mask"}
ATTENTION = {"sdpa": "sdpa_attention_forward"}


class Replacement:
    """Stands in for a function of a registry, and calls the plain function once `in_use` is over."""

    def __init__(self, plain: Callable, function: Callable, in_use: list[bool]) -> None:
        self.plain = plain
        self._function = function
        self._in_use = in_use

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._function if self._in_use else self.plain)(*args, **kwargs)


def registered(function: Callable) -> Callable:
    """Returns the function that `function` stands in for, or `function` itself."""
    while isinstance(function, Replacement):
        function = function.plain
    return function


def is_of_transformers(function: Any, name: str = "") -> bool:
    """Returns True for a function that transformers defines under a name with `name` in it.

    Returns False for a wrapper with the same name and module: functools.wraps copies these, but not code and globals.
    """
    function = registered(function)
    if not isinstance(function, FunctionType):
        return False
    home = function.__globals__.get("__name__", "")
    is_own = home.startswith("transformers.") and function.__globals__ is vars(sys.modules.get(home, sys))
    return is_own and name in function.__code__.co_name


def arguments_of(function: Callable) -> tuple[str, ...]:
    """Returns the names of the arguments of a Python function, without *args and **kwargs."""
    code = registered(function).__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def has_own_sdpa() -> bool:
    """Returns True if the registry's function for sdpa is transformers' own."""
    return is_of_transformers(ALL_ATTENTION_FUNCTIONS["sdpa"], ATTENTION["sdpa"])


@contextlib.contextmanager
def lookups_replaced(
    registry: Any, names: Mapping[str, str], replace: Callable[[Callable], Callable]
) -> Iterator[None]:
    """Inside, a lookup gives `replace(function)` for a function of transformers.

    Args:
        registry: the class of registries; models may have one of their own.
        names: the keys in question, and the names of transformers' functions for them.
    """
    plain, in_use = registry.__getitem__, [True]

    def look_up(self: Any, key: str) -> Any:
        function = plain(self, key)
        if key in names and is_of_transformers(function, names[key]):
            return Replacement(function, replace(function), in_use)
        return function

    try:
        with attributes_replaced([(registry, "__getitem__", look_up)]):
            yield
    finally:
        in_use.clear()
