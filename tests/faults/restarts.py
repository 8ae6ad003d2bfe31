"""Lets runs die at random under `mps-trainer run --restarts`: `python -m tests.faults.restarts --trials 20`.

Each trial is one command, in which the script dies once or twice at a random operator: killed, aborted, out of
memory, by a GPU fault, or it hangs. It must end by itself with the weights of a run without faults: bit for bit, and
within 1e-5 where it went on with fewer examples at a time. Eight of eleven trials run the script of this series; the
simulated device has to be there before torch, so those are started by `mps-trainer launch`, which leaves transformers
to the script. The others run scripts of TRL and for transformers, unchanged. All processes are forked from this one.
"""

import argparse
import datetime
import importlib.util
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mps_trainer.simulator  # noqa: F401 - before torch, so that its build for CUDA can simulate the device

# isort: split
from safetensors.torch import load_file

from mps_trainer.cli.supervisor import PAUSE
from tests import HUNG_AFTER

from . import forked, scripts, training
from .restarted import GIVEN, OF_MEMORY, OUTCOME, WEIGHTS

SCRIPT = Path(__file__).with_name("restarted.py")
KINDS = ("SIGKILL", "SIGABRT", "memory", "GPU fault", "hang")
VARIANTS = (*training.VARIANTS, *scripts.SCRIPTS)
HANG_TIMEOUT = 10  # seconds
MOST = 3
# A run that dies twice at the same step is given up. It resumes up to four steps before its death, where it saves
# every other step and dies during a save; a step with an evaluation has twice the operators of another.
APART = 8  # steps from a resume to the second fault, at least
TOLERANCE = 1e-5
LOGGED = ("step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss")


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

    def trials(self, number: int, devices: Sequence[str]) -> Iterator[Trial]:
        for name, (path, _) in scripts.SCRIPTS.items():
            if path is None:
                print(f"Its library is not installed, so there are no trials of {name}.", flush=True)
        for i in range(number):
            variant = VARIANTS[i // len(devices) % len(VARIANTS)]
            if variant in training.VARIANTS or scripts.SCRIPTS[variant][0] is not None:
                yield self.trial(i, variant, devices[i % len(devices)])

    def trial(self, number: int, variant: str, device: str) -> Trial:
        draw = random.Random(f"{self.seed} {number}")
        first_kind = KINDS[(number + number // len(VARIANTS)) % len(KINDS)]
        kinds = [first_kind, *draw.choices(KINDS, k=draw.randrange(2))]
        is_exact = not set(kinds) & set(OF_MEMORY)
        expected = self.undisturbed(variant, device, is_exact)
        operators = expected["operators"]
        first, later = draw.randrange(1, operators), draw.randrange(APART * operators // training.STEPS, operators)
        faults = list(zip(kinds, (first, later), strict=False))
        folder = self.folder / f"trial-{number}"
        folder.mkdir()
        status, said = run(folder, variant, device, faults, is_exact, MOST)
        return Trial(variant, device, faults, *self.compare(folder, expected, status, said, is_exact))

    def undisturbed(self, variant: str, device: str, has_dropout: bool) -> dict:
        key = variant, device, has_dropout or variant in scripts.SCRIPTS  # their models have none
        folder = self.folder / " ".join(map(str, ("whole", *key)))
        if not folder.exists():
            folder.mkdir()
            status, said = run(folder, variant, device, [], has_dropout, 0)
            if status:
                raise RuntimeError(f"The undisturbed run failed:\n{said[-3000:]}")
        return {**json.loads((folder / OUTCOME).read_text()), "folder": folder}

    @staticmethod
    def compare(folder: Path, expected: dict, status: int, said: str, is_exact: bool) -> tuple[str, int]:
        if status:
            last = [line for line in said.splitlines() if line.strip()][-1:]
            return f"status {status}: {' '.join(last)[:200]}", 0
        found = json.loads((folder / OUTCOME).read_text())
        for outcome in (found, expected):  # TRL's own figures begin anew with each process
            outcome["logs"] = [{name: each[name] for name in LOGGED if name in each} for each in outcome["logs"]]
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
) -> tuple[int, str]:
    """Runs the script under `mps-trainer run --restarts`, or once for no restarts; returns its status and output."""
    environ = {PAUSE: "0.01", "HF_HUB_OFFLINE": "1"}
    if variant in scripts.SCRIPTS:
        words = scripts.words(variant, folder, device)
        environ[GIVEN] = json.dumps({"folder": str(folder), "device": device, "faults": faults})
    else:
        flags = json.dumps(faults), "dropout" if has_dropout else "no dropout"
        words = [str(SCRIPT), str(folder), variant, device, *flags]
    starter = "launch" if device == "mps" and variant not in scripts.SCRIPTS else "run"
    command = [sys.executable, "-m", "mps_trainer", starter]
    if restarts:
        command += ["--restarts", str(restarts), "--hang_timeout", str(HANG_TIMEOUT)]
    return forked.run([*command, *words], environ, folder / "log.txt", HUNG_AFTER)


def main(argv: list[str] | None = None) -> int:
    first_line = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.faults.restarts", description=first_line)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--device", action="append", choices=["cpu", "mps"], help="default: cpu; mps is simulated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    options = parser.parse_args(argv)
    forked.preload()
    devices, trials = options.device or ["cpu"], []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="restarted-") as folder:
        for trial in Series(Path(folder), options.seed).trials(options.trials, devices):
            trials.append(trial)
            faults = ", ".join(f"{kind} at operator {at}" for kind, at in trial.faults)
            print(
                f"{len(trials)}/{options.trials} {trial.variant}, {trial.device}: {faults}: {trial.verdict}, "
                f"{trial.starts} starts",
                flush=True,
            )
    found = figures(trials)
    print(f"\n{found['good']} of {len(trials)} ended as without faults on {' and '.join(devices)}")
    faults = ", ".join(f"{number} {kind}" for kind, number in found["faults"].items())
    print(f"  {found['starts']} starts; faults drawn: {faults}; {time.monotonic() - begun:.0f} s")
    if options.output is not None:
        written = {"date": datetime.date.today().isoformat(), "devices": devices, "seed": options.seed, **found}
        options.output.write_text(json.dumps(written, indent=1) + "\n")
    return int(found["good"] != len(trials))


def figures(trials: list[Trial]) -> dict[str, Any]:
    """Returns the figures of a series. A fault that is drawn need not happen: the run may have ended before it."""
    libraries = ("mps_trainer", "torch", "transformers", "trl")
    scripts_run = Counter(trial.variant if trial.variant in scripts.SCRIPTS else "this series" for trial in trials)
    return {
        "versions": {name: version(name) for name in libraries if importlib.util.find_spec(name)},
        "trials": len(trials),
        "good": sum(trial.is_good for trial in trials),
        "starts": sum(trial.starts for trial in trials),
        "faults": dict(sorted(Counter(kind for trial in trials for kind, _ in trial.faults).items())),
        "scripts": dict(scripts_run.most_common()),
        "verdicts": dict(Counter(trial.verdict for trial in trials).most_common()),
    }


if __name__ == "__main__":
    sys.exit(main())
