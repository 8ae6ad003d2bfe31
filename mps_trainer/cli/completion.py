"""Completion in the user's shell: a script made from the argument parser, by shtab."""

from __future__ import annotations

import argparse
from typing import Any

SHELLS = ("bash", "zsh")


class PrintCompletion(argparse.Action):
    """Prints the script for a shell and ends. shtab is imported here and not before."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None
    ) -> None:
        import shtab

        _describe_in_short(parser)
        print(shtab.complete(parser, values))
        parser.exit()


def _describe_in_short(parser: argparse.ArgumentParser) -> None:
    """zsh shows a line for each command, and shtab takes the description for it, which is a paragraph."""
    for commands in parser._actions:
        if isinstance(commands, argparse._SubParsersAction):
            for named in commands._choices_actions:
                commands.choices[named.dest].description = named.help


def completes_files(action: argparse.Action) -> argparse.Action:
    """Lets the shell propose files where this argument is typed."""
    action.complete = "file"  # type: ignore[attr-defined]  # shtab looks for it
    return action


def completes_folders(action: argparse.Action) -> argparse.Action:
    """Lets the shell propose folders where this argument is typed."""
    action.complete = "directory"  # type: ignore[attr-defined]  # shtab looks for it
    return action
