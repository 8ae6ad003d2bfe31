"""Runs the command `mps-trainer`."""

from __future__ import annotations

import argparse
import functools
import io
import sys
from collections.abc import Sequence

from ..errors import MisconfigurationException
from ..utils.installation import how_to_install
from ..utils.refusal import FAILED, INTERRUPTED, TRACEBACK, WRONG_INPUT, refuse, wants_traceback
from ..utils.terminal import let_go
from ..utils.text import sentence
from ..version import __version__
from . import check, config, doctor, env, example, export, fit, launch, report, run, selftest, simulate, speed
from .parser import SHELLS, ListOfCommands, OneLineParser, PrintCompletion

NAME = "mps-trainer"
# Each has add_parser(commands), which returns the parser of the command, and run(arguments).
COMMANDS = (doctor, selftest, speed, config, launch, run, report, check, fit, simulate, export, example, env)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; `argv` defaults to the command line."""
    arguments = None
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr does so: it writes out what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        words = sys.argv[1:] if argv is None else list(argv)
        arguments = _parser().parse_args(words)
        arguments.typed = words[: len(words) - len(getattr(arguments, "arguments", ()))]
        return arguments.run(arguments)
    except MisconfigurationException as error:
        return refuse(NAME, error, getattr(arguments, "failure", WRONG_INPUT))
    except BrokenPipeError:  # `mps-trainer doctor | head -1`: the reader has seen enough
        let_go(sys.stdout)
        return 0
    except KeyboardInterrupt as interrupt:
        print(f"\n{NAME}: {str(interrupt) or 'interrupted.'}", file=sys.stderr)
        return INTERRUPTED
    except ImportError as error:
        return refuse(NAME, error, FAILED, f"{sentence(error)} {how_to_install(error.name)}")
    except Exception as error:
        hint = "" if wants_traceback() else f" Set {TRACEBACK}=1 to see the traceback."
        return refuse(NAME, error, FAILED, f"{type(error).__name__}: {sentence(error)}{hint}")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=NAME,
        opening=f"Fine-tune models on a Mac. Start here: {NAME} doctor",
        usage=f"{NAME} [-h] [--version] COMMAND ...",
        formatter_class=functools.partial(ListOfCommands, max_help_position=28),
    )
    parser.add_argument("--version", action="version", version=f"mps-trainer {__version__}")
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=SHELLS,
        action=PrintCompletion,
        help="complete commands in bash or zsh",
    )
    commands = parser.add_subparsers(prog=NAME, dest="command", metavar="COMMAND", required=True)
    parser._positionals.title = "commands"  # a title for add_subparsers would put them below the options
    for command in COMMANDS:
        command.add_parser(commands).set_defaults(run=command.run)
    return parser
