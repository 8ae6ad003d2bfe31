"""Runs a user's script inside a command, as `python script.py arguments` would run it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..utils.refusal import INTERRUPTED
from .completion import completes


def add_script_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of every command that runs a script."""
    completes(command.add_argument("--json", metavar="FILE", help="also write the report to FILE as JSON"))
    command.add_argument(
        "--fallback",
        action="store_true",
        help="run operators without an MPS kernel on the CPU: sets PYTORCH_ENABLE_MPS_FALLBACK=1",
    )
    completes(command.add_argument("script", metavar="SCRIPT", help="a Python file"))
    add_rest(command)


def add_rest(command: argparse.ArgumentParser) -> None:
    """Adds the script's own arguments."""
    rest = command.add_argument(
        "arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="arguments of the script"
    )
    rest.required = False  # argparse before 3.13 names it beside a SCRIPT that is missing
    completes(rest)


def count(text: str) -> int:
    """Returns the whole number, of at least 1, that an option is given."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def check_paths(arguments: argparse.Namespace) -> None:
    """Raises MisconfigurationException for a script or a folder that is not there, before anything takes time."""
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
    """Raises MisconfigurationException if there is no script at `path`."""
    if not Path(path).is_file():
        raise MisconfigurationException(f"There is no file {path} to run. Name a Python script.")


def run_script(path: str, arguments: list[str], passing: tuple[type[BaseException], ...] = ()) -> int:
    """Runs the file at `path` as the main program and returns its exit status, with its traceback if it raised.

    Afterwards stdout and stderr are this program's own, whatever the script has done to them.

    Args:
        passing: exceptions of this package that end the script and are left to the caller.
    """
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    try:
        with own_streams():
            runpy.run_path(path, run_name="__main__")
    except passing:
        raise
    except SystemExit as end:
        return exit_status(end)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BaseException as error:  # anything that a script raises is the script's
        print_traceback(error)
        return 1
    return 0


@contextlib.contextmanager
def own_streams() -> Iterator[None]:
    """Puts sys.stdout and sys.stderr back at its end; one that was closed inside is opened again."""
    kept = [(name, number, getattr(sys, name), _copy_of(number)) for name, number in (("stdout", 1), ("stderr", 2))]
    try:
        yield
    finally:
        for name, number, stream, copy in kept:
            _flushes(getattr(sys, name, None))  # the script may have put one of its own there
            if copy is None:  # it was closed before
                setattr(sys, name, stream)
            elif _flushes(stream) and _is_open(number):
                setattr(sys, name, stream)
                os.close(copy)
            else:
                os.dup2(copy, number)
                os.close(copy)
                setattr(sys, name, open(number, "w", buffering=1, errors="backslashreplace", closefd=False))  # noqa: SIM115


def _copy_of(number: int) -> int | None:
    try:
        return os.dup(number)
    except OSError:
        return None


def _is_open(number: int) -> bool:
    try:
        return bool(os.fstat(number))
    except OSError:
        return False


def _flushes(stream: Any) -> bool:
    try:
        stream.flush()
    except Exception:  # closed, None, its reader gone, or an object of the script's own
        return False
    return True


def exit_status(end: SystemExit) -> int:
    """Returns the exit status as the interpreter does: 0 for None, a number as it is, 1 for anything else, printed."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def print_traceback(error: BaseException) -> None:
    """Prints the traceback from the script's own first line on, without the frames of this package and of runpy."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def write_json(path: str, report: dict[str, Any]) -> None:
    """Writes the report. Raises MisconfigurationException when that fails after all, as on a full disk."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise MisconfigurationException(
            f"--json {path} was not written: {error.strerror}. The report is printed above. Name another file and "
            "run the command again."
        ) from error
