"""Completes commands in the user's shell by a script that shtab makes from the argument parser."""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh")


class PrintCompletion(argparse.Action):
    """Prints the script for a shell and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None
    ) -> None:
        import shtab

        _describe_in_short(parser)
        print(shtab.complete(parser, values))
        parser.exit()


def _describe_in_short(parser: argparse.ArgumentParser) -> None:
    """Gives zsh one line for each command, where shtab would take the description, a paragraph."""
    for commands in parser._actions:
        if isinstance(commands, argparse._SubParsersAction):
            for named in commands._choices_actions:
                commands.choices[named.dest].description = named.help


def completes(action: argparse.Action, what: str = "file") -> argparse.Action:
    """Lets the shell propose files, or "directory" for folders, where this argument is typed."""
    action.complete = what  # type: ignore[attr-defined]  # shtab looks for it
    return action
