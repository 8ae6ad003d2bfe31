"""Runs the command `mps-trainer`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import MisconfigurationException
from ..refusal import INTERRUPTED, refuse, refuse_unforeseen
from ..terminal import let_go
from ..version import __version__
from . import check, config, doctor, env, example, fit, launch, report, run, selftest, simulate
from .completion import SHELLS, PrintCompletion

NAME = "mps-trainer"
# Each has add_parser(commands), which says what runs the command and with what status it fails.
COMMANDS = (doctor, selftest, config, launch, run, report, check, fit, simulate, example, env)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; `argv` defaults to the command line."""
    try:
        arguments = _parser().parse_args(argv)
    except MisconfigurationException as error:
        return refuse(NAME, error)
    try:
        return arguments.run(arguments)
    except MisconfigurationException as error:
        return refuse(NAME, error, arguments.failure)
    except BrokenPipeError:  # `mps-trainer doctor | head -1`: the reader has seen enough
        let_go(sys.stdout)
        return 0
    except KeyboardInterrupt as interrupt:
        print(f"\n{NAME}: {str(interrupt) or 'interrupted.'}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return refuse_unforeseen(NAME, error)


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it, and takes every flag with dashes or underscores."""

    def add_argument(self, *flags: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*flags, **settings)
        twins = [twin for flag in flags if flag.startswith("--") and (twin := _respelled(flag)) != flag]
        if twins:  # as an argument of its own, so that help and completion show one spelling
            unseen = {"dest": action.dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            super().add_argument(*twins, **{**settings, **unseen})
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses here what is unknown to a command, which argparse leaves to the parser of all commands."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        raise MisconfigurationException(f"{message.rstrip('.')}. `{self.prog} --help` lists what there is.")


def _respelled(flag: str) -> str:
    """Returns the flag with dashes for underscores, or else with underscores for dashes."""
    name = flag.removeprefix("--")
    return "--" + (name.replace("_", "-") if "_" in name else name.replace("-", "_"))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=NAME, usage=f"{NAME} [-h] [--version] COMMAND ...", description="Fine-tune models on a Mac."
    )
    parser.add_argument("--version", action="version", version=f"mps-trainer {__version__}")
    parser.add_argument(
        "--print-completion", choices=SHELLS, action=PrintCompletion, help="print a script that completes commands"
    )
    commands = parser.add_subparsers(prog=NAME, dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
