"""Kills runs at random and starts them again: `python -m tests.faults.kill --trials 200`.

Each trial is a training process that is killed (SIGKILL) at up to three random times, saves included, and started
again until it ends. What it has learned then must be, bit for bit, what an uninterrupted run learns. With
`--processes 2` it is two that train together, of which one is killed.
"""

import argparse
import datetime
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from tests.distributed.launch import environment, free_port

from . import forked, training
from .training import MET

MOST_KILLS = 3  # per trial
FINDS_OUT = 60  # seconds, twice the ddp_timeout of the runs


class Harness:
    """Compares killed runs of a library with uninterrupted ones.

    Processes are forked from this one, which has imported what they need, so that a start takes no seconds. Nothing
    may have been computed with torch here: a fork has none of its threads.
    """

    def __init__(self, library: str, folder: Path, seed: int, processes: int = 1) -> None:
        self.library, self.processes = library, processes
        self.folder, self.seed = folder, seed
        self.draw = random.Random(seed)
        self.whole: dict[tuple[str, str], tuple[dict, float]] = {}
        forked.preload()

    def trial(self, number: int, variant: str, device: str) -> tuple[str, int, int]:
        """Returns "identical" or the fault, the number of kills, and how many of them hit a save."""
        expected, seconds = self.uninterrupted(variant, device)
        self.draw = random.Random(f"{self.seed} {number}")  # alike for both libraries
        moments = [self.draw.random() for _ in range(MOST_KILLS)]
        folder = self.folder / f"trial-{number}"
        kills = in_a_save = 0
        status = None
        while status is None:
            deadline = moments[kills] * seconds if kills < MOST_KILLS else None
            status = self.run(folder, variant, device, deadline)
            if status is None:
                kills += 1
                in_a_save += self.saving(folder)
        verdict = self.compare(folder, expected, status)
        shutil.rmtree(folder)
        return verdict, kills, in_a_save

    def uninterrupted(self, variant: str, device: str) -> tuple[dict, float]:
        key = variant, device
        if key not in self.whole:
            folder = self.folder / f"whole {variant} {device}"
            start = time.monotonic()
            status = self.run(folder, variant, device, None)
            if status != 0:
                log = (folder / "log.txt").read_text()
                raise SystemExit(f"The uninterrupted run failed with exit status {status}:\n{log[-3000:]}")
            self.whole[key] = json.loads((folder / "outcome.json").read_text()), time.monotonic() - start
        return self.whole[key]

    def run(self, folder: Path, variant: str, device: str, seconds: float | None) -> int | None:
        """Returns the exit status of a training run, or None if one of its processes was killed after `seconds`."""
        folder.mkdir(exist_ok=True)
        (folder / MET).unlink(missing_ok=True)
        port = free_port()
        running = []
        for rank in range(self.processes):
            if (pid := os.fork()) == 0:
                if self.processes > 1:
                    os.environ.update(environment(rank, self.processes, port))
                _be_the_run(self.library, folder, variant, device)
            running.append(pid)
        # The clock of several begins when they have met: one that waits for others notices only by its timeout.
        begun = time.monotonic() if self.processes == 1 else None
        status = 0
        while running:
            for pid in list(running):
                ended, how = os.waitpid(pid, os.WNOHANG)
                if ended:
                    running.remove(pid)
                    status = status or os.waitstatus_to_exitcode(how)
            if begun is None and (folder / MET).exists():
                begun = time.monotonic()
            if running and None not in (begun, seconds) and time.monotonic() >= begun + seconds:
                self.kill(running)
                return None
            time.sleep(0.0005)
        return status

    def kill(self, running: list[int]) -> None:
        """Kills one of the processes. The others have to find out and end by themselves."""
        victim = self.draw.choice(running)
        os.kill(victim, signal.SIGKILL)
        for pid in running:
            found_out = time.monotonic() + FINDS_OUT
            while not os.waitpid(pid, os.WNOHANG)[0]:
                if time.monotonic() > found_out:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    raise SystemExit(f"A process went on for {FINDS_OUT} s after another had been killed.")
                time.sleep(0.0005)

    def saving(self, folder: Path) -> bool:
        if self.library == "mps_trainer":
            return any(folder.glob("tmp-checkpoint-*"))
        return any(not (path / "trainer_state.json").exists() for path in folder.glob("checkpoint-*"))

    @staticmethod
    def compare(folder: Path, expected: dict, status: int) -> str:
        if status != 0:
            last = [line for line in (folder / "log.txt").read_text().splitlines() if line.strip()][-1:]
            return f"could not resume: {' '.join(last)[:160]}"
        found = json.loads((folder / "outcome.json").read_text())
        if found["steps"] != expected["steps"]:
            return f"{found['steps']} steps instead of {expected['steps']}"
        different = [name for name, value in expected.items() if found[name] != value]
        return f"other {different[0]}" if different else "identical"


def _be_the_run(library: str, folder: Path, variant: str, device: str) -> None:
    with open(folder / "log.txt", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    forked.end_with(lambda: training.train(library, folder, variant, device))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kill", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=25)
    parser.add_argument("--library", choices=["mps_trainer", "transformers"], default="mps_trainer")
    parser.add_argument("--device", action="append", choices=["cpu", "mps"], help="default: cpu; mps is simulated")
    choices = [*training.variants(processes=2), *training.ON_REQUEST]
    parser.add_argument("--variant", action="append", choices=choices, help="default: all for so many processes")
    parser.add_argument("--processes", type=int, default=1, help="that train together; default: 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    return parser.parse_args(argv)


def main() -> int:
    options = parse(None)
    variants, devices = options.variant or training.variants(options.processes), options.device or ["cpu"]
    tally: Counter[str] = Counter()
    kills = in_a_save = 0
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        harness = Harness(options.library, Path(folder), options.seed, options.processes)
        for i in range(options.trials):
            variant, device = variants[i // len(devices) % len(variants)], devices[i % len(devices)]
            verdict, *hits = harness.trial(i, variant, device)
            tally[verdict.split(":")[0]] += 1
            kills, in_a_save = kills + hits[0], in_a_save + hits[1]
            print(f"{i + 1}/{options.trials} {variant}, {device}: {verdict}", flush=True)
    print(f"\n{options.library}: {kills} kills, {in_a_save} of them in a save")
    for verdict, number in tally.most_common():
        print(f"  {number} of {options.trials} {verdict}")
    if options.output is not None:
        figures = {
            "library": options.library,
            "date": datetime.date.today().isoformat(),
            "devices": devices,
            "versions": {name: version(name) for name in ("mps_trainer", "torch", "transformers")},
            "processes": options.processes,
            "seed": options.seed,
            "trials": options.trials,
            "kills": kills,
            "in_a_save": in_a_save,
            "verdicts": dict(tally.most_common()),
        }
        options.output.write_text(json.dumps(figures, indent=1) + "\n")
    return int(tally["identical"] != options.trials)


if __name__ == "__main__":
    sys.exit(main())
