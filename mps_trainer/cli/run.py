"""`mps-trainer run`: runs a script with this package's Trainer instead of transformers'."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..launching.settings import COMMAND, command_of
from .script import add_restarts, add_script, check_packages, check_restarts, check_script, run_script


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "run",
        opening="example: mps-trainer run --restarts 3 train.py --output_dir out",
        help="run a transformers script with this Trainer",
        description="Run a script like `python SCRIPT ARGUMENTS`, but with this package's Trainer and "
        "TrainingArguments instead of transformers'. It also works for TRL, sentence-transformers and SetFit. The "
        "script needs no change; `import mps_trainer.replace_transformers` as its first line does the same. The "
        "exit status is the script's, or 2 if it did not start. With --restarts, a run that is killed, crashes or "
        "runs out of memory resumes from its newest checkpoint; an error of the script ends it. With --hang_timeout, "
        "so does a run that hangs; give it more seconds than the longest step, save, and start of training take.",
    )
    add_restarts(command)
    add_script(command)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the script and returns its exit status."""
    check_script(arguments)
    check_restarts(arguments)
    environ = {**os.environ, COMMAND: command_of(arguments.typed, os.environ)}
    if arguments.restarts:
        from .supervisor import supervise

        script = [*(["-m"] if arguments.module else []), arguments.script, *arguments.arguments]
        command = [sys.executable, "-m", "mps_trainer", "run", *script]
        return supervise(command, arguments.restarts, environ, arguments.hang_timeout)
    check_packages()
    from .. import replace_transformers

    replace_transformers.replace()  # an earlier command in this process may have undone it
    os.environ[COMMAND] = environ[COMMAND]
    try:
        return run_script(arguments.script, arguments.arguments, arguments.module)
    finally:
        os.environ.pop(COMMAND, None)
        replace_transformers.undo()
