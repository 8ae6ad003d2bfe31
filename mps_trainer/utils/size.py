"""Limits what is read from the files of users: a few lines of YAML can expand to more than memory holds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

MOST_ITEMS = 100_000  # a real file of arguments has some hundred


def is_too_large(root: Any) -> bool:
    """Returns True if a value, or a node of YAML, has more than `MOST_ITEMS` items, or never ends.

    A part counts once per reference, because printing or copying the value meets it as often.
    """
    met, waiting = 0, [root]
    while waiting:
        met += 1
        inner = _parts(waiting.pop())
        if met + len(waiting) + len(inner) > MOST_ITEMS:
            return True
        waiting.extend(inner)
    return False


def _parts(item: Any) -> Collection[Any]:
    """Returns keys and values of a dictionary, the items of a list or a node, and nothing of another value."""
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    item = getattr(item, "value", item)  # a node's items are a list, and those of a table are pairs
    return item if isinstance(item, (list, tuple, set, frozenset)) else ()
