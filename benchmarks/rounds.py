"""Measuring in alternation, and what the rounds come to."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Target
from .worker import MeasurementFailedError

Round = dict[str, dict[str, Any]]


def alternate(entries: Mapping[str, Entry], rounds: int) -> tuple[list[Round], dict[str, str]]:
    """Every entry once in each round, in an order that turns; and those that failed, with the error.

    One that fails takes no part in the rounds after it.
    """
    names, failed = list(entries), dict[str, str]()
    measured: list[Round] = []
    for number in range(rounds):
        turn = number % len(names)
        figures: Round = {}
        for name in names[turn:] + names[:turn]:
            if name in failed:
                continue
            print(f"  round {number + 1} of {rounds}: {entries[name].label}", file=sys.stderr, flush=True)
            try:
                figures[name] = entries[name].measure(number)
            except MeasurementFailedError as error:
                failed[name] = f"failed: {error}"
        measured.append({name: figures[name] for name in names if name in figures})
    return measured, failed


def middles(rounds: list[Round], figures: tuple[Figure, ...]) -> dict[str, dict[str, float]]:
    """The median of each entry's figures over the rounds, or the mean where the figure says so."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for round_ in rounds for name in round_):
        measured = [round_[name] for round_ in rounds if name in round_]
        found[name] = {
            figure.name: (statistics.mean if figure.mean else statistics.median)(row[figure.name] for row in measured)
            for figure in figures
            if all(row.get(figure.name) is not None for row in measured)
        }
    return found


def ratios(rounds: list[Round], figures: tuple[Figure, ...], baseline: str | None) -> dict[str, dict[str, float]]:
    """Of each entry to the baseline: the median of the ratios within a round, which a slow round does not move."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for round_ in rounds for name in round_):
        pairs = [(round_[name], round_[baseline]) for round_ in rounds if name in round_ and baseline in round_]
        for figure in figures:
            if figure.ratio and pairs and all(base.get(figure.name) and figure.name in own for own, base in pairs):
                values = [own[figure.name] / base[figure.name] for own, base in pairs]
                found.setdefault(name, {})[figure.name] = statistics.median(values)
    return found


def judged(benchmark: Benchmark, middle: dict[str, Any], to_baseline: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target with what was reached; None where it was not measured."""

    def reached(target: Target) -> float | None:
        source = to_baseline if target.of_ratio else middle
        return source.get(target.entry, {}).get(target.figure)

    return [
        {
            **{"entry": target.entry, "figure": target.figure, "of_ratio": target.of_ratio},
            **{"at_most": target.at_most, "reached": (value := reached(target))},
            "met": None if value is None else value <= target.at_most,
        }
        for target in benchmark.targets
    ]
