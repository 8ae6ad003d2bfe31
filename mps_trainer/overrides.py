"""Knows the methods of a Trainer that a subclass replaced, and closes the faster ways around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def methods_of(kind: type) -> dict[str, Any]:
    """Returns the methods and properties of a class by name."""
    return {name: getattr(kind, name) for name in vars(kind)}


class Overrides:
    """The names of the methods that a subclass, an instance or a patch has put in the place of the Trainer's own.

    Attributes:
        slower: what the run does the slower way because of that, each with the methods that are to blame.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self.slower: dict[str, tuple[str, ...]] = {}

    @classmethod
    def of(cls, instance: object, methods: Mapping[str, Any]) -> Overrides:
        """Returns those of `instance`, compared with `methods`, what `methods_of` gave before anything was patched."""
        kind, own = type(instance), vars(instance)
        return cls(name for name, method in methods.items() if name in own or getattr(kind, name, None) is not method)

    def has(self, *names: str) -> bool:
        """Returns True if one of the methods is replaced."""
        return not self._names.isdisjoint(names)

    def allow(self, fast_path: str, *names: str) -> bool:
        """Returns True if `fast_path` may be taken, as none of the methods that it goes around is replaced."""
        to_blame = tuple(name for name in names if name in self._names)
        if to_blame:
            self.slower[fast_path] = to_blame
        return not to_blame

    def texts(self) -> list[str]:
        """Returns what the run does the slower way, and why, a clause each."""
        return [f"{path}, because {' and '.join(names)} is overridden" for path, names in self.slower.items()]
