"""Limits what is read from the files of users: a few lines of YAML can expand to more than memory holds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

MOST_ITEMS = 100_000  # a real file of arguments has some hundred


def is_too_large(root: Any, parts: Callable[[Any], Collection[Any]]) -> bool:
    """Returns True if a walk from `root` meets more than `MOST_ITEMS` items, or never ends.

    A part counts once per reference, because printing or copying the value meets it as often.

    Args:
        parts: returns the items that an item directly holds.
    """
    met, waiting = 0, [root]
    while waiting:
        met += 1
        inner = parts(waiting.pop())
        if met + len(waiting) + len(inner) > MOST_ITEMS:
            return True
        waiting.extend(inner)
    return False


def parts_of_value(value: Any) -> Collection[Any]:
    """Returns keys and values of a dictionary, the items of a list, and nothing of another value."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, (list, tuple, set, frozenset)) else ()
