"""Selects a tier of the tests, and forbids those of the default tier to start a Python.

A new interpreter imports torch and transformers again, which takes longer than most tests do. `docs/contributing.md`
explains the tiers.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator

import pytest

from mps_trainer.simulator import SimulatorUnavailableError
from mps_trainer.tools.simulator.build import build_device

# Folders with tests of the documentation, the workflows and the packages of this project.
OF_PROJECT = ("docs", "release")
# Fixtures that start servers or interpreters: a test that uses one belongs to the integration tier.
STARTING_FIXTURES = frozenset({"benchmarks", "benchmarks_here", "hub", "run_once", "run_python", "wheel"})
PROGRAMS = ("mps-trainer", "torchrun")


class PythonStartedError(AssertionError):
    """Raised in a test of the default tier that starts another Python."""


class TierRules:
    """A pytest plugin: selects the tier that `-m` names, and holds the default tier to its rule."""

    def __init__(self) -> None:
        self._watched: str | None = None  # the running test, if it may start no Python
        sys.addaudithook(self._audit)  # sees what libraries start with subprocess, too

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Builds the simulated device where it has not been, because tests may not start a compiler from Python."""
        if not hasattr(session.config, "workerinput"):
            with contextlib.suppress(SimulatorUnavailableError):  # tests that need it are skipped with this reason
                build_device()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves out the tests of every tier that `-m` does not name. `-m extra` keeps all tiers but acceptance."""
        expression = config.getoption("markexpr")
        if expression == "extra":
            expression = "integration or project"  # pytest itself deselects tests without the marker
        tiers = [tier_of(item) for item in items]
        for item, tier in zip(items, tiers, strict=True):
            if tier in ("integration", "project"):
                item.add_marker(tier)
        left_out = [item for item, tier in zip(items, tiers, strict=True) if tier and tier not in expression]
        items[:] = [item for item, tier in zip(items, tiers, strict=True) if not tier or tier in expression]
        config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._watched = None if tier_of(item) else item.nodeid
        try:
            return (yield)
        finally:
            self._watched = None

    def _audit(self, event: str, arguments: tuple) -> None:
        if event == "subprocess.Popen" and self._watched is not None and starts_python(arguments[1]):
            raise PythonStartedError(f"{self._watched} starts another Python: mark it `integration`, or do without.")


def tier_of(item: pytest.Item) -> str:
    """Returns "project", "integration", "acceptance", or "" for the default tier."""
    if item.get_closest_marker("acceptance") is not None:
        return "acceptance"
    starts = STARTING_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    if starts or item.get_closest_marker("integration") is not None:
        return "integration"
    return "project" if item.path.parent.name in OF_PROJECT else ""


def starts_python(command: object) -> bool:
    """Returns True if a command line, a string or words, runs Python or a script that Python runs."""
    if isinstance(command, (str, bytes)):
        words = shlex.split(os.fsdecode(command))
    else:
        words = [os.fsdecode(word) for word in command]  # type: ignore[attr-defined]
    names = [os.path.basename(word) for word in words]
    return any(name.startswith("python") or name in PROGRAMS for name in names)
