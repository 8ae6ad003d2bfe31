"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from . import charts, report, summary
from .benchmark import Benchmark, Options, SkippedError
from .environment import describe
from .peers import PEERS
from .rounds import alternate, judged, middles, ratios
from .worker import ROOT

NAMES = (
    "overhead",
    "distributed",
    "simulated",
    "mrpc",
    "startup",
    "memory",
    "learning",
    "options",
    "libraries",
    "language",
    "attention",
    "padding",
    "quantized",
)
DATA = os.environ.get("MPS_TRAINER_REAL_DATA", str(ROOT.parent / "shared"))


def main(argv: list[str] | None = None) -> int:
    """Runs the requested benchmarks. Returns 0, 1 if a measured peer failed, or 2."""
    arguments = parse(argv)
    found = {name: load(name) for name in arguments.names or NAMES}
    wanted = {name: one for name, one in found.items() if arguments.names or one.by_default}
    options = Options(tuple(arguments.peers), arguments.data, arguments.quick, arguments.rounds)
    folder = Path(arguments.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(
            f"python -m benchmarks: error: --output {folder}: {error.strerror}. Name another folder.", file=sys.stderr
        )
        return 2
    environment, any_failed = describe(), False
    for name, benchmark in wanted.items():
        print(f"{name}: {benchmark.title}", file=sys.stderr, flush=True)
        result, failed = run(benchmark, options)
        any_failed = any_failed or failed
        text = json.dumps({"name": name, **environment, **result}, indent=1)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    results = report.read(folder)
    table = summary.block({result["name"]: result for result in results})
    (folder / "README.md").write_text(report.page(results, charts.draw(results, folder), table), encoding="utf-8")
    print(folder / "README.md")
    return int(any_failed)


def run(benchmark: Benchmark, options: Options) -> tuple[dict[str, Any], bool]:
    """Returns the result for JSON, and True if a measured peer failed."""
    head = {"title": benchmark.title, "quick": options.quick}
    try:
        plan = benchmark.plan(options)
        if not plan.entries:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.left_out.items())
            raise SkippedError(f"Nobody whom it measures is left of {', '.join(options.peers)}. {reasons}".strip())
    except SkippedError as skipped:
        print(f"  skipped: {skipped}", file=sys.stderr)
        return {**head, "skipped": str(skipped)}, False
    for name, reason in plan.left_out.items():
        print(f"  left out: {name}: {reason}", file=sys.stderr)
    rounds, failed = alternate(plan.entries, options.rounds or (1 if options.quick else benchmark.rounds))
    middle = middles(rounds, benchmark.figures)
    to_baseline = ratios(rounds, benchmark.figures, benchmark.baseline)
    return {
        **head,
        "figures": [vars(figure) for figure in benchmark.figures],
        "baseline": benchmark.baseline,
        "settings": plan.settings,
        "labels": {name: entry.label for name, entry in plan.entries.items()},
        "left_out": {**plan.left_out, **failed},
        "rounds": rounds,
        "middles": middle,
        "ratios": to_baseline,
        "learned": {name: [round_[name].get("learned") for round_ in rounds if name in round_] for name in middle},
        "targets": judged(benchmark, middle, to_baseline),
    }, bool(failed)


def load(name: str) -> Benchmark:
    return importlib.import_module(f"benchmarks.{name}").BENCHMARK


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure this Trainer and the others that are installed on the same model, data and seed.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} [all but the long ones]")
    parser.add_argument("--rounds", type=int, help="how often each is measured [depends on the benchmark]")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), help="who is measured [all]")
    parser.add_argument("--output", default=str(Path(__file__).parent / "results"), help="[benchmarks/results]")
    parser.add_argument("--data", default=DATA, help="folder with glue/MRPC and models/minilm-l6 [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="few steps and one round: whether it works, no figures")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"{unknown[0]!r} is no benchmark. There are {', '.join(NAMES)}.")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds} measures nothing; it must be at least 1.")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
