"""Lets runs die at random under `mps-trainer run --restarts`: `python -m tests.faults.restarts --trials 20`.

Each trial is one command, in which the script dies once or twice at a random operator: killed, aborted, out of
memory, or by a GPU fault. It must end by itself with the weights of a run without faults: bit for bit, and within
1e-5 where it went on with fewer examples at a time. The simulated device has to be there before torch, so its runs are
started by `mps-trainer launch`, which leaves transformers to the script.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from mps_trainer.cli.supervisor import PAUSE
from tests import HUNG_AFTER

from . import training
from .restarted import OF_MEMORY, OUTCOME, WEIGHTS

SCRIPT = Path(__file__).with_name("restarted.py")
KINDS = ("SIGKILL", "SIGABRT", "memory", "GPU fault")
MOST = 3
# A run that dies twice at the same step is given up. It resumes up to four steps before its death, where it saves
# every other step and dies during a save; a step with an evaluation has twice the operators of another.
APART = 8  # steps from a resume to the second fault, at least
TOLERANCE = 1e-5


@dataclass
class Trial:
    """Holds the result of one trial: "identical", "within 1e-5" or what was wrong, and its faults."""

    variant: str
    device: str
    faults: list[tuple[str, int]]
    verdict: str
    starts: int

    @property
    def is_good(self) -> bool:
        return self.verdict in ("identical", f"within {TOLERANCE:g}")


class Series:
    """Trials in `folder`, which depend on the seed and their number alone."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.whole: dict[tuple[str, str, bool], dict] = {}

    def trials(self, number: int, device: str) -> Iterator[Trial]:
        for i in range(number):
            yield self.trial(i, list(training.VARIANTS)[i % len(training.VARIANTS)], device)

    def trial(self, number: int, variant: str, device: str) -> Trial:
        draw = random.Random(f"{self.seed} {number}")
        first_kind = KINDS[(number + number // len(training.VARIANTS)) % len(KINDS)]
        kinds = [first_kind, *draw.choices(KINDS, k=draw.randrange(2))]
        is_exact = not set(kinds) & set(OF_MEMORY)
        expected = self.undisturbed(variant, device, is_exact)
        operators = expected["operators"]
        first, later = draw.randrange(1, operators), draw.randrange(APART * operators // training.STEPS, operators)
        faults = list(zip(kinds, (first, later), strict=False))
        folder = self.folder / f"trial-{number}"
        done = run(folder, variant, device, faults, is_exact, MOST)
        return Trial(variant, device, faults, *self.compare(folder, expected, done, is_exact))

    def undisturbed(self, variant: str, device: str, has_dropout: bool) -> dict:
        key = variant, device, has_dropout
        if key not in self.whole:
            folder = self.folder / f"whole {len(self.whole)}"
            done = run(folder, variant, device, [], has_dropout, 0)
            if done.returncode:
                raise SystemExit(f"The undisturbed run failed:\n{done.stderr[-3000:]}")
            self.whole[key] = {**json.loads((folder / OUTCOME).read_text()), "folder": folder}
        return self.whole[key]

    @staticmethod
    def compare(
        folder: Path, expected: dict, done: subprocess.CompletedProcess[str], is_exact: bool
    ) -> tuple[str, int]:
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            return f"status {done.returncode}: {' '.join(last)[:200]}", 0
        found = json.loads((folder / OUTCOME).read_text())
        starts, logged = found["starts"], [entry["step"] for entry in found["logs"]]
        if found["steps"] != expected["steps"] or logged != [entry["step"] for entry in expected["logs"]]:
            return "other steps", starts
        if is_exact:
            same = all(found[name] == expected[name] for name in ("weights", "everything", "logs"))
            return "identical" if same else "other weights, optimizer, random numbers or logs", starts
        ours, theirs = load_file(folder / WEIGHTS), load_file(expected["folder"] / WEIGHTS)
        apart = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
        return (f"within {TOLERANCE:g}" if apart <= TOLERANCE else f"weights are {apart:.1e} apart"), starts


def run(
    folder: Path, variant: str, device: str, faults: list[tuple[str, int]], has_dropout: bool, restarts: int
) -> subprocess.CompletedProcess[str]:
    """Runs the script under `mps-trainer run --restarts`."""
    folder.mkdir()
    words = [str(folder), variant, device, json.dumps(faults), "dropout" if has_dropout else "no dropout"]
    starter = "launch" if device == "mps" else "run"
    command = [sys.executable, "-m", "mps_trainer", starter, "--restarts", str(restarts), str(SCRIPT), *words]
    root = str(SCRIPT.parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, PAUSE: "0.01", "PYTHONPATH": path}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HUNG_AFTER)
    (folder / "log.txt").write_text(done.stdout + done.stderr)
    return done


def main(argv: list[str] | None = None) -> int:
    first_line = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.faults.restarts", description=first_line)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "mps"], default="cpu", help="mps is simulated")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    tally: Counter[str] = Counter()
    good = starts = 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="restarted-") as folder:
        for i, trial in enumerate(Series(Path(folder), options.seed).trials(options.trials, options.device), 1):
            tally.update(kind for kind, _ in trial.faults)
            good, starts = good + trial.is_good, starts + trial.starts
            faults = ", ".join(f"{kind} at operator {at}" for kind, at in trial.faults)
            print(
                f"{i}/{options.trials} {trial.variant}: {faults}: {trial.verdict}, {trial.starts} starts", flush=True
            )
    faults = ", ".join(f"{number} {kind}" for kind, number in sorted(tally.items()))
    print(f"\n{good} of {options.trials} ended as without faults on {options.device} (torch {torch.__version__})")
    print(f"  {starts} starts; faults drawn: {faults}; {time.monotonic() - begun:.0f} s")
    return int(good != options.trials)


if __name__ == "__main__":
    sys.exit(main())
