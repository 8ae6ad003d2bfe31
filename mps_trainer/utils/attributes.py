"""Replaces attributes of objects for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

_ABSENT = object()


@contextlib.contextmanager
def attributes_replaced(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Sets attributes inside: each change is an object, a name and a value.

    At the end they are as they were before. A value that other code has put in the place of one stays.
    """
    done = []
    try:
        for owner, name, value in changes:
            done.append((owner, name, value, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value, before in reversed(done):
            if vars(owner).get(name, _ABSENT) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
