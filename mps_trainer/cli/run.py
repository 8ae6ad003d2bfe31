"""`mps-trainer run`: runs a script with this package's Trainer in the place of transformers'."""

from __future__ import annotations

import argparse
from typing import Any

from ..refusal import WRONG_INPUT
from .completion import completes
from .script import add_rest, check_script, run_script


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "run",
        help="run a script for transformers' Trainer with this one",
        description="Run a script as `python SCRIPT ARGUMENTS` would, with this Trainer and its arguments in "
        "transformers' place, also for TRL, sentence-transformers and SetFit. The script needs no change; a line "
        "`import mps_trainer.replace_transformers` at its top does the same. The exit status is the script's; 2 when "
        "it could not be started.",
    )
    completes(command.add_argument("script", metavar="SCRIPT", help="a Python file"))
    add_rest(command)
    command.set_defaults(run=run, failure=WRONG_INPUT)


def run(arguments: argparse.Namespace) -> int:
    """Runs the script and returns its exit status."""
    check_script(arguments.script)
    from .. import replace_transformers

    replace_transformers.replace()  # where an earlier command in this process has undone it
    try:
        return run_script(arguments.script, arguments.arguments)
    finally:
        replace_transformers.undo()
