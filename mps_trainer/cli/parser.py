"""Parses command lines: errors in one line, flags in two spellings, and completion of commands in a shell."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from ..errors import MisconfigurationException
from ..utils.text import did_you_mean

SHELLS = ("bash", "zsh")
# A shell proposes these for an argument, by its metavar.
_PROPOSED = {"FILE": "file", "SCRIPT": "file", "ARGUMENTS": "file", "DIR": "directory", "OUTPUT_DIR": "directory"}
_OTHER_SPELLING = str.maketrans("-_", "_-")


class OneLineParser(argparse.ArgumentParser):
    """Reports errors in one line without the usage, and accepts every flag with dashes or underscores.

    Args:
        opening: the first line of the help, such as an example.
    """

    def __init__(self, *args: Any, opening: str = "", **settings: Any) -> None:
        # an abbreviation of two flags, such as --config, would be refused among the script's arguments as well
        super().__init__(*args, **{"allow_abbrev": False, **settings})
        self.opening = opening

    def format_help(self) -> str:
        return f"{self.opening}\n{super().format_help()}"

    def add_argument(self, *flags: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*flags, **settings)
        if action.metavar in _PROPOSED:
            action.complete = _PROPOSED[action.metavar]  # type: ignore[attr-defined]  # shtab looks for it
        twins = [f"--{flag[2:].translate(_OTHER_SPELLING)}" for flag in flags if flag.startswith("--")]
        if twins := [twin for twin in twins if twin not in flags]:
            # it is an argument of its own, so that help and completion show one spelling
            unseen = {"dest": action.dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            super().add_argument(*twins, **{**settings, **unseen})
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses unknown flags here; argparse would leave them to the parser of all commands."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
            near = did_you_mean(flag, (each for each in self._option_string_actions if each.startswith("--")))
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{near}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith(("?", ".")) else "."
        raise MisconfigurationException(f"{message}{end} See `{self.prog} --help`.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"unknown command {value!r}.{did_you_mean(value, action.choices)}")
        super()._check_value(action, value)


class ListOfCommands(argparse.HelpFormatter):
    """Lists the commands without a line for their metavar."""

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(map(super()._format_action, self._iter_indented_subactions(action)))
        return super()._format_action(action)


class PrintCompletion(argparse.Action):
    """Prints the script for a shell and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None
    ) -> None:
        import shtab

        for commands in parser._actions:
            if isinstance(commands, argparse._SubParsersAction):
                for named in commands._choices_actions:  # zsh would show the description, a paragraph
                    commands.choices[named.dest].description = named.help
        print(shtab.complete(parser, values))
        parser.exit()
