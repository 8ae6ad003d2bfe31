"""Runs the command `mps-trainer`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import MisconfigurationException
from ..utils.refusal import INTERRUPTED, refuse, refuse_unforeseen
from ..utils.terminal import let_go
from ..utils.text import did_you_mean
from ..version import __version__
from . import check, config, doctor, env, example, fit, launch, report, run, selftest, simulate
from .completion import SHELLS, PrintCompletion

NAME = "mps-trainer"
# Each has add_parser(commands), which sets the function that runs the command and the status with which it fails.
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


class ListOfCommands(argparse.HelpFormatter):
    """Lists the commands without a line for their metavar."""

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(map(super()._format_action, self._iter_indented_subactions(action)))
        return super()._format_action(action)


class OneLineParser(argparse.ArgumentParser):
    """Reports errors in one line without the usage, and accepts every flag with dashes or underscores.

    Args:
        opening: the first line of the help, such as an example.
    """

    def __init__(self, *args: Any, opening: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.opening = opening

    def format_help(self) -> str:
        return f"{self.opening}\n{super().format_help()}"

    def add_argument(self, *flags: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*flags, **settings)
        twins = [twin for flag in flags if flag.startswith("--") and (twin := _respelled(flag)) != flag]
        if twins:  # as an argument of its own, so that help and completion show one spelling
            unseen = {"dest": action.dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            super().add_argument(*twins, **{**settings, **unseen})
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses unknown flags here; argparse would leave them to the parser of all commands."""
        words = sys.argv[1:] if args is None else list(args)
        if words and self._is_unknown(words[0]):  # argparse would ask for a missing argument first
            self._refuse_flags(words[:1])
        known, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self._refuse_flags(unknown)
        return known, unknown

    def error(self, message: str) -> NoReturn:
        raise MisconfigurationException(f"{_ended(message)} See `{self.prog} --help`.")

    def _is_unknown(self, word: str) -> bool:
        flag = word.partition("=")[0]
        return len(flag) > 2 and flag.startswith("--") and not any(o.startswith(flag) for o in self._flags())

    def _refuse_flags(self, unknown: list[str]) -> NoReturn:
        flag = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
        self.error(f"unrecognized arguments: {' '.join(unknown)}.{did_you_mean(flag, self._flags())}")

    def _flags(self) -> list[str]:
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"unknown command {value!r}.{did_you_mean(value, action.choices)}")
        super()._check_value(action, value)


def _ended(message: str) -> str:
    return message if message.endswith("?") else f"{message.rstrip('.')}."


def _respelled(flag: str) -> str:
    """Returns the flag with dashes for underscores, or else with underscores for dashes."""
    name = flag.removeprefix("--")
    return "--" + (name.replace("_", "-") if "_" in name else name.replace("-", "_"))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=NAME,
        opening=f"start here: {NAME} doctor",
        usage=f"{NAME} [-h] [--version] COMMAND ...",
        description="Fine-tune models on a Mac.",
        formatter_class=ListOfCommands,
    )
    parser.add_argument("--version", action="version", version=f"mps-trainer {__version__}")
    parser.add_argument(
        "--print-completion", choices=SHELLS, action=PrintCompletion, help="print a script that completes commands"
    )
    commands = parser.add_subparsers(prog=NAME, dest="command", metavar="COMMAND", required=True)
    parser._positionals.title = "commands"  # a title for add_subparsers would put them below the options
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
