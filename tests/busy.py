"""Runs a command while other processes keep the processors busy: `python -m tests.busy python -m pytest -n 3`.

Finds tests that pass only on a quiet machine. The busy processes end with the command, whose exit status is returned.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys


def keep_busy(parent: int) -> None:
    """Computes until the process that started this one has gone."""
    while os.getppid() == parent:
        sum(range(1_000_000))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.busy", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--processes", type=int, default=2, help="that keep busy (default: %(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run meanwhile")
    arguments = parser.parse_args()
    if not arguments.command:
        parser.error("the command is missing")
    others = [multiprocessing.Process(target=keep_busy, args=(os.getpid(),)) for _ in range(arguments.processes)]
    for other in others:
        other.start()
    try:
        return subprocess.call(arguments.command)
    except KeyboardInterrupt:
        return 130
    finally:
        for other in others:
            other.terminate()
            other.join()


if __name__ == "__main__":
    sys.exit(main())
