"""Detects which methods a subclass overrides and disables the fast paths that would skip them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Overrides:
    """Holds the names of the Trainer's methods that a subclass, an instance or a patch has overridden.

    Attributes:
        slower: the fast paths that are disabled, each with the overridden methods that cause it.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self.slower: dict[str, tuple[str, ...]] = {}

    @classmethod
    def of(cls, instance: object, methods: Mapping[str, Any]) -> Overrides:
        """Returns the overrides of `instance`, compared with the methods of its class before any patch."""
        kind, own = type(instance), vars(instance)
        return cls(name for name, method in methods.items() if name in own or getattr(kind, name, None) is not method)

    def has(self, *names: str) -> bool:
        """Returns True if one of the methods is overridden."""
        return not self._names.isdisjoint(names)

    def allow(self, fast_path: str, *names: str) -> bool:
        """Returns True if `fast_path` may be taken: no method that it skips is overridden."""
        to_blame = tuple(name for name in names if name in self._names)
        if to_blame:
            self.slower[fast_path] = to_blame
        return not to_blame

    def texts(self) -> list[str]:
        """Returns a clause for each disabled fast path, with the reason."""
        return [f"{path}, because {' and '.join(names)} is overridden" for path, names in self.slower.items()]
