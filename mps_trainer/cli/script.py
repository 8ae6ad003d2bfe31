"""Runs a user's script inside a command, as `python script.py arguments` would run it."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import shutil
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

from ..errors import MisconfigurationException
from ..tools.stopped import ScriptStopped
from ..utils.refusal import INTERRUPTED

_SHARED_FLAGS: dict[str, dict[str, Any]] = {
    "--json": {"metavar": "FILE", "help": "also write the report to FILE as JSON"},
    "--fallback": {
        "action": "store_true",
        "help": "run operators without an MPS kernel on the CPU",
    },
}

_MARK = {"generator": "mps_trainer"}  # begins each report, so that the next command may overwrite it
_REPORT_BEGINS = json.dumps(_MARK, indent=2)[: -len("\n}")]


def add_flags(command: argparse.ArgumentParser, *flags: str) -> None:
    """Adds flags that several commands have: --json and --fallback."""
    for flag in flags:
        command.add_argument(flag, **_SHARED_FLAGS[flag])


def add_script(command: argparse.ArgumentParser) -> None:
    """Adds the script, or the module with -m, and its own arguments."""
    command.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module name, as in python -m")
    command.add_argument("script", metavar="SCRIPT", help="a Python file")
    rest = command.add_argument(
        "arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="arguments of the script"
    )
    rest.required = False  # argparse before 3.13 names it beside a SCRIPT that is missing


def add_restarts(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--restarts",
        metavar="N",
        type=functools.partial(count, least=0),
        default=0,
        help="resume a run that dies, at most N times (default: 0)",
    )
    command.add_argument(
        "--hang_timeout",
        metavar="S",
        type=count,
        help="with --restarts, also resume one that hangs for S seconds",
    )


def check_restarts(arguments: argparse.Namespace) -> None:
    """Raises MisconfigurationException for a timeout that would have no effect."""
    if arguments.hang_timeout is not None and not arguments.restarts:
        raise MisconfigurationException(
            f"--hang_timeout {arguments.hang_timeout} has no effect without --restarts, which starts a run again. Add "
            "--restarts 3, or leave it out."
        )


def count(text: str, least: int = 1) -> int:
    """Returns the whole number, of at least `least`, that an option is given."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def check_paths(arguments: argparse.Namespace) -> None:
    """Raises MisconfigurationException for a script or a folder that is not there, before anything takes time.

    Makes the path of the report absolute, because a script may change the working folder.
    """
    check_script(arguments)
    if arguments.json is None:
        return
    target = Path(arguments.json)
    if not arguments.module and target.exists() and target.samefile(arguments.script):
        raise MisconfigurationException(f"--json {arguments.json} is the script itself. Name another file.")
    check_report(arguments.json)
    arguments.json = os.path.abspath(arguments.json)


def check_report(path: str) -> None:
    """Raises MisconfigurationException if `path` cannot be written, or is a file other than a report."""
    target = Path(path)
    needed = [target] if target.exists() else []
    if not _is_stream(path):  # another file takes its place when that is whole
        needed.append(Path(os.path.realpath(path)).parent)
    if target.is_dir() or not target.parent.is_dir() or not all(os.access(each, os.W_OK) for each in needed):
        raise MisconfigurationException(
            f"--json {path} cannot be written. Name a file in a folder that exists and may be written to."
        )
    if target.is_file() and not _is_report(target):  # /dev/stdout is not a file
        raise MisconfigurationException(
            f"--json {path} was not written by mps_trainer, and is kept. Name another file, or move it."
        )


def _is_report(path: Path) -> bool:
    """Returns True for a report of an earlier command, or an empty file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(len(_REPORT_BEGINS)) in ("", _REPORT_BEGINS)


def check_script(arguments: argparse.Namespace) -> None:
    """Raises MisconfigurationException if there is no script at the path. A module is found when it is run."""
    path = arguments.script
    if not arguments.module and not Path(path).is_file():
        raise MisconfigurationException(f"There is no file {path} to run. Name a Python script.")


def check_packages() -> None:
    """Raises ModuleNotFoundError if torch or transformers, which the script is expected to import, is missing."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _spec_of(module: str) -> Any:
    """Returns the spec of a module, or of a package's `__main__`, as `python -m` finds it.

    Raises:
        MisconfigurationException: if there is none.
    """
    name, spec = module, None
    try:
        spec = None if name.startswith(".") else importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:  # a parent is missing, or imports a module that is
        if not f"{name}.".startswith(f"{error.name}."):
            raise
    if spec is None or not hasattr(spec.loader, "get_code"):
        raise MisconfigurationException(
            f"There is no module {name} to run. Name one that can be imported from this folder, without .py."
        )
    return spec


def run_script(path: str, arguments: list[str], is_module: bool = False) -> int:
    """Runs the file at `path` as the main program and returns its exit status, with its traceback if it raised.

    Afterwards sys.stdout and sys.stderr are this program's own again.

    Args:
        is_module: `path` is the name of a module, as for `python -m`.

    Raises:
        ScriptStopped: if a command of this package has ended the script.
        MisconfigurationException: if there is no such module.
    """
    sys.path[0] = os.getcwd() if is_module else str(Path(path).resolve().parent)
    begun, own, script = _time_of_files(), sys.modules["__main__"], types.ModuleType("__main__")
    spec = _spec_of(path) if is_module else None
    # runpy.run_path would leave it relative or change sys.argv[0]
    script.__file__ = os.path.abspath(path) if spec is None else spec.origin
    sys.argv = [path if spec is None else spec.origin, *arguments]
    if spec is not None:
        script.__spec__, script.__package__, script.__loader__ = spec, spec.parent, spec.loader
    sys.modules["__main__"] = script
    try:
        with contextlib.redirect_stdout(sys.stdout), contextlib.redirect_stderr(sys.stderr):
            if spec is not None:
                code = spec.loader.get_code(spec.name)
            else:
                code = compile(Path(path).read_bytes(), script.__file__, "exec", dont_inherit=True)
            exec(code, vars(script))
    except ScriptStopped as stopped:
        trainer = stopped.found[-1]
        with contextlib.suppress(OSError):  # the folder has files
            if trainer is not None and os.stat(trainer.args.output_dir).st_ctime >= begun:
                os.rmdir(trainer.args.output_dir)  # the Trainer made it
        raise
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BaseException as error:  # anything that a script raises is the script's
        trace = error.__traceback__  # without the frames of this package
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return 1
    finally:
        sys.modules["__main__"] = own
    return 0


def _time_of_files() -> float:
    """Returns the time that a new file would get: Linux's are up to 10 ms behind its clock."""
    coarse = getattr(time, "CLOCK_REALTIME_COARSE", None)
    return time.time() if coarse is None else time.clock_gettime(coarse)


def write_json(path: str | None, report: dict[str, Any]) -> None:
    """Writes the report, if there is a path. A file there has the old report until the new one is whole.

    Raises MisconfigurationException when that fails, as on a full disk.
    """
    if path is None:
        return
    text = json.dumps({**_MARK, **report}, indent=2) + "\n"
    try:
        if _is_stream(path):
            Path(path).write_text(text, encoding="utf-8")
        else:
            _replace(os.path.realpath(path), text)
    except OSError as error:
        raise MisconfigurationException(
            f"--json {path} was not written: {error.strerror}. The report is printed above. Name another file and "
            "run the command again."
        ) from error


def _is_stream(path: str) -> bool:
    """Returns True for a path such as /dev/stdout, also if that is redirected to a file."""
    return os.path.abspath(path).startswith("/dev/") or (os.path.exists(path) and not os.path.isfile(path))


def _replace(path: str, text: str) -> None:
    """Writes the file at `path`: whole, or not at all. Raises OSError."""
    unfinished = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.tmp")
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
        if os.path.exists(path):
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
