"""Defines a benchmark: its peers, figures and rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class SkippedError(Exception):
    """The benchmark cannot run here. The message says why."""


@dataclass(frozen=True)
class Options:
    """Holds the command line: `peers` are names, `data` is the folder with `glue` and `models`."""

    peers: tuple[str, ...]
    data: str
    quick: bool = False
    rounds: int | None = None


@dataclass(frozen=True)
class Figure:
    """One measured number, by its name in the JSON.

    Tables have the median over the rounds; with `mean`, the mean. With `ratio`, it is also given over the baseline's.
    """

    name: str
    label: str
    digits: int = 2
    ratio: bool = False
    chart: bool = False
    mean: bool = False


@dataclass(frozen=True)
class Target:
    """A target for `entry`: at most `at_most` for the figure, or for its ratio to the baseline."""

    entry: str
    figure: str
    at_most: float
    of_ratio: bool = False


@dataclass(frozen=True)
class Entry:
    """One that is measured; `measure(round)` gives its figures, and in `learned` what shows that it did its work."""

    label: str
    measure: Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """A benchmark made ready: who takes part, who does not and why, and the settings that all share."""

    entries: Mapping[str, Entry]
    settings: dict[str, Any]
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """`plan(options)` says what is to be measured, or raises SkippedError. `by_default`: run when none is named."""

    title: str
    figures: tuple[Figure, ...]
    plan: Callable[[Options], Plan]
    rounds: int
    baseline: str | None = None
    targets: tuple[Target, ...] = ()
    by_default: bool = True
