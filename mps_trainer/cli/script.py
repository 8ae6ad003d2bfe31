"""Running a user's script inside a command, as `python script.py arguments` would run it."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..refusal import INTERRUPTED
from .completion import completes_files


def add_script_arguments(command: argparse.ArgumentParser) -> None:
    """What every command takes that runs a script."""
    completes_files(command.add_argument("--json", metavar="FILE", help="also write the report to FILE as JSON"))
    command.add_argument(
        "--fallback",
        action="store_true",
        help="let operators without an MPS kernel run on the CPU: PYTORCH_ENABLE_MPS_FALLBACK=1, set in time",
    )
    completes_files(command.add_argument("script", metavar="SCRIPT", help="a Python file"))
    add_rest(command)


def add_rest(command: argparse.ArgumentParser) -> None:
    """The script's own arguments."""
    rest = command.add_argument(
        "arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="passed on to the script"
    )
    rest.required = False  # argparse before 3.13 names it beside a SCRIPT that is missing
    completes_files(rest)


def check_paths(arguments: argparse.Namespace) -> None:
    """Before anything takes time. Raises MisconfigurationException for a script or a folder that is not there."""
    check_script(arguments.script)
    if arguments.json is None:
        return
    target = Path(arguments.json)
    if target.exists() and target.samefile(arguments.script):
        raise MisconfigurationException(f"--json {arguments.json} is the script itself. Name another file.")
    check_report(arguments.json)


def check_report(path: str) -> None:
    """Raises MisconfigurationException where no report can be written to `path`."""
    target = Path(path)
    if (
        target.is_dir()
        or not target.parent.is_dir()
        or not os.access(target if target.exists() else target.parent, os.W_OK)
    ):
        raise MisconfigurationException(
            f"--json {path} cannot be written. Name a file in a folder that exists and may be written to."
        )


def check_script(path: str) -> None:
    if not Path(path).is_file():
        raise MisconfigurationException(f"There is no file {path} to run. Name a Python script.")


def run_script(path: str, arguments: list[str]) -> int:
    """Run the file at `path` as the main program; its exit status, with its traceback printed if it raised."""
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return exit_status(end)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        print_traceback(error)
        return 1
    return 0


def exit_status(end: SystemExit) -> int:
    """As the interpreter has it: None is 0, a number itself, anything else is printed and 1."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def print_traceback(error: BaseException) -> None:
    """From the script's own first line on: the frames that led into it are this package's and runpy's."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _is_ours(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen runpy>") or file == runpy.__file__


def write_json(path: str, report: dict[str, Any]) -> None:
    """Raises MisconfigurationException when it cannot be written after all, as on a full disk."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise MisconfigurationException(
            f"--json {path} was not written: {error.strerror}. What it would have said is above; name another file "
            "and start again for the rest."
        ) from error
