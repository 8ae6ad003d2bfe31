"""The command `mps-trainer`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import MisconfigurationException
from ..version import __version__
from . import check, doctor, simulate

# Each has add_parser(commands), which says what runs the command and with what status it fails.
COMMANDS = (doctor, check, simulate)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; `argv` defaults to the command line."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except MisconfigurationException as error:
        print(f"mps-trainer: {error}", file=sys.stderr)
        return arguments.failure
    except BrokenPipeError:  # `mps-trainer doctor | head -1`: the reader has seen enough
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mps-trainer", description="Fine-tune models on a Mac.")
    parser.add_argument("--version", action="version", version=f"mps-trainer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
