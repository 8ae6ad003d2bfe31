"""Measures what the default tier catches: changes the source in a sample of places and counts what tests notice.

`python -m tests.mutation` runs mutmut, with the settings of pyproject.toml, on a sample drawn from the areas below
with a fixed seed, and prints the share of mutants that a test kills, by area. Each mutant gets the tests that reach
it, those of its folder first and the shortest of them first, until their durations add up to `SECONDS`; one that
survives gets ten times as much. The shares are therefore lower bounds. A mutant that no test reaches has survived.

mutmut loads this module as a pytest plugin as well, which chooses those tests.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "mps_trainer"
FAILED = (1, 2, 3)  # a test failed, or pytest was interrupted or broke
OUT_OF_TIME = (-24, 24, 36, 152)  # without end, or too slow for the limit of pyproject.toml

SECONDS = 25.0  # each mutant gets as many of tests; durations are those with mutmut's instrumentation
STATS = "mutmut-stats.json"


@dataclass(frozen=True)
class Area:
    """A part of the package: how many of its mutants are tried, and the patterns of its files."""

    size: int
    files: tuple[str, ...]


AREAS = {
    "device resolution": Area(60, ("devices/resolver.py",)),
    "other device code": Area(40, ("devices/facts.py", "devices/findings.py", "devices/accelerators/*.py")),
    "checkpoints": Area(110, ("checkpoints/*.py",)),
    "the loop": Area(
        60,
        (
            "loop/run.py",
            "loop/position.py",
            "loop/rollback.py",
            "loop/preemption.py",
            "evaluation/best_metric.py",
            "data/plan.py",
        ),
    ),
    "loss weighting": Area(50, ("loop/items.py", "loop/loss_divisors.py", "loop/loss_normalisation.py")),
    "the Trainer": Area(60, ("trainer.py", "loop/initial_state.py")),
    "data order": Area(40, ("data/order.py", "data/buckets.py", "loop/batch_source.py")),
}


def mutants_of(area: Area) -> Iterator[str]:
    """Yields the names of all mutants of the area's files, in the order of the source."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    for pattern in area.files:
        for path in sorted(Path(PACKAGE).glob(pattern)):
            for name in mutate_file_contents(str(path), path.read_text(encoding="utf-8")).mutant_names:
                yield get_mutant_name(path, name)


def sample(areas: Iterable[str]) -> dict[str, list[str]]:
    """Returns the mutants to try in each of the areas; the same for the same source."""
    chosen = {}
    for name in areas:
        area = AREAS[name]
        found = list(mutants_of(area))
        chosen[name] = sorted(random.Random(f"17 {name}").sample(found, min(area.size, len(found))))
    return chosen


def exit_statuses() -> dict[str, int | None]:
    statuses: dict[str, int | None] = {}
    for meta in Path("mutants").rglob("*.meta"):
        statuses.update(json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"])
    return statuses


def pytest_configure(config: Any) -> None:
    """Leaves out tests with an escape in their name: a process that has collected them does not find them again."""
    config.args = [name for name in config.args if "\\" not in name]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Sorts the tests of a mutant, those of its folder first, by duration, and keeps what the budget allows."""
    module = os.environ.get("MUTANT_UNDER_TEST", "").rpartition(".")[0]
    if not module or not Path(STATS).exists():
        return  # mutmut collects its statistics, or checks that the tests pass
    budget = float(os.environ["MUTATION_SECONDS"])
    durations = json.loads(Path(STATS).read_text(encoding="utf-8"))["duration_by_test"]
    items.sort(key=lambda item: (is_far(module, item.nodeid), durations.get(item.nodeid, 0.0)))
    spent, kept = 0.0, 0
    for item in items:
        spent += durations.get(item.nodeid, 0.0)
        if spent > budget and kept:
            break
        kept += 1
    config.hook.pytest_deselected(items=items[kept:])
    del items[kept:]


def is_far(module: str, nodeid: str) -> bool:
    """Returns False for a test in the folder that mirrors a module's."""
    return not nodeid.startswith("/".join(["tests", *module.split(".")[1:-1][:1]]) + "/")


def run(names: list[str], seconds: float) -> int:
    """Tries the mutants and shows mutmut's output; returns its exit status."""
    # Through a pipe: mutmut prints while a test limits the size of files, and cannot go on if its output is one.
    command = [Path(sys.executable).with_name("mutmut"), "run", "--max-children", "2", *names]
    variables = {**os.environ, "MUTATION_SECONDS": str(seconds)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables) as process:
        assert process.stdout is not None
        for chunk in iter(lambda: process.stdout.read1(), b""):  # type: ignore[union-attr]
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    return process.returncode


def survivors(names: list[str]) -> list[str]:
    statuses = exit_statuses()
    return [name for name in names if statuses.get(name) not in (*FAILED, *OUT_OF_TIME)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--area", action="append", choices=AREAS, help="to try; may be repeated (default: all)")
    arguments = parser.parse_args()
    chosen = sample(arguments.area or AREAS)
    names = [name for area in chosen.values() for name in area]
    if (status := run(names, SECONDS)) or ((left := survivors(names)) and (status := run(left, 10 * SECONDS))):
        return status
    statuses = exit_statuses()
    print("\n| area | mutants | killed | share | out of time |\n| --- | ---: | ---: | ---: | ---: |")
    for name, mutants in {**chosen, "all": names}.items():
        ends = Counter(statuses.get(mutant) for mutant in mutants)
        late = sum(ends[status] for status in OUT_OF_TIME)
        killed = sum(ends[status] for status in FAILED) + late
        print(f"| {name} | {len(mutants)} | {killed} | {killed / len(mutants):.0%} | {late} |")
    late = [name for name in names if statuses.get(name) in OUT_OF_TIME]
    print("\nOut of time:", *late, sep="\n  ")
    print("\nSurvived:", *survivors(names), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
