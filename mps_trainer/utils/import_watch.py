"""Calls functions when a script imports a package, and imports nothing itself.

`mps-trainer run` and its like change torch and transformers. If they imported these before the script, the variables
that the script sets in its first lines would come too late: `PYTORCH_ENABLE_MPS_FALLBACK`, `HF_HOME` and many others
are read by an import.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch:
    """A finder that calls functions before and after each import of a module of some packages.

    An import of such a module inside another one belongs to the outer one, because the modules of a package need each
    other in part before they are complete.

    Args:
        owner: the module that watches, by name. It is not watched itself, as when a notebook reloads it.
        packages: the packages, by name. Their modules are found by the finders that come after this one.
        before: is called when an import begins.
        after: is called when it has ended or failed. What it imports belongs to the same import.
    """

    def __init__(
        self, owner: str, packages: Collection[str], before: Callable[[], Any] | None, after: Callable[[], Any]
    ) -> None:
        self.owner = owner
        self.packages = packages
        self._before = before
        self._after = after
        self._looked_up: set[str] = set()
        self._importing = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.packages or name in (self.owner, *self._looked_up):
            return None
        self._looked_up.add(name)  # another watch may ask this one in turn
        try:
            found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._looked_up.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _WatchedLoader(spec.loader, self)  # type: ignore[assignment]
        return spec

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Calls `before` and `after` around the import inside, unless that is inside another one of this thread."""
        if getattr(self._importing, "now", False):
            yield
            return
        self._importing.now = True
        try:
            if self._before is not None:
                self._before()
            try:
                yield
            finally:
                self._after()
        finally:
            self._importing.now = False


class _WatchedLoader:
    """Loads a module as its own loader does, inside `ImportWatch.importing`. The module keeps its own loader."""

    def __init__(self, loader: Any, watch: ImportWatch) -> None:
        self._loader = loader
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._watch.importing():
            self._loader.exec_module(module)


def watch_imports(
    owner: str, packages: Collection[str], after: Callable[[], Any], before: Callable[[], Any] | None = None
) -> None:
    """Calls `after`, and `before`, around each import of these packages, until `stop_watching(owner)`."""
    sys.meta_path.insert(0, ImportWatch(owner, packages, before, after))


def stop_watching(owner: str) -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "owner", None) != owner]


def is_watched(package: str) -> bool:
    """Returns True if a watch calls functions when this package is imported."""
    return any(package in getattr(finder, "packages", ()) for finder in sys.meta_path)


@contextlib.contextmanager
def when_imported(
    owner: str,
    work: Mapping[str, Callable[[ModuleType], Any]],
    before: Callable[[], Any] | None = None,
    outside: Collection[str] = (),
) -> Iterator[None]:
    """Calls each function of `work` after the import of its module, or now if it has been imported.

    Args:
        owner: the module that watches, by name.
        work: functions that take the module, by its name.
        before: is called when an import of one of these packages begins.
        outside: packages that import the packages of `work`. The functions are called after their imports, not within.
    """
    waiting = dict(work)

    def call_due() -> None:
        for name in list(waiting):
            if name in sys.modules and (function := waiting.pop(name, None)) is not None:
                function(sys.modules[name])

    watch_imports(owner, {name.partition(".")[0] for name in work} | {*outside}, call_due, before)
    try:
        call_due()
        yield
    finally:
        stop_watching(owner)
