"""`mps-trainer launch`: runs a script with the settings of `mps-trainer config`, in one or several processes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..launching.config_file import in_force
from ..launching.environment import environment
from ..launching.processes import become, check_machine, check_module, command_line, torchrun
from ..launching.settings import DEFAULTS, PRECISIONS, InForce, LaunchSettings, typed
from ..utils.refusal import WRONG_INPUT
from ..utils.text import as_line
from .completion import completes
from .script import add_rest, check_script


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "launch",
        opening="example: mps-trainer launch --mixed_precision bf16 train.py --output_dir out",
        help="run a script with the settings of `config`",
        description="Run a script like `python SCRIPT ARGUMENTS` with settings from --config_file, `mps-trainer "
        "config` or `accelerate config`. Flags override environment variables, which override the file. The exit "
        "status is the script's, or 2.",
    )
    command.add_argument("--cpu", action="store_true", help="train on the CPU, even where there is a GPU")
    command.add_argument("--mixed_precision", choices=PRECISIONS, help="number format of autocast (default: no)")
    command.add_argument("--mps_fallback", action="store_true", help="run operators without an MPS kernel on the CPU")
    command.add_argument(
        "--num_processes", metavar="N", type=_count, help="number of processes, on the CPU or GPUs (default: 1)"
    )
    completes(
        command.add_argument("--config_file", metavar="FILE", help="a settings file of this command or of Accelerate")
    )
    command.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module name, as in python -m")
    completes(command.add_argument("script", metavar="SCRIPT", help="a Python file"))
    add_rest(command)
    command.set_defaults(run=run, failure=WRONG_INPUT)


def _count(text: str) -> int:
    try:
        return typed("num_processes", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error


def run(arguments: argparse.Namespace) -> int:
    """Starts the script and returns its exit status. With one process it takes this one's place."""
    if arguments.module:
        check_module(arguments.script, os.getcwd())
    else:
        check_script(arguments.script)
    chosen = in_force(arguments.config_file, os.environ)
    flags = LaunchSettings(
        device="cpu" if arguments.cpu else None,
        mixed_precision=arguments.mixed_precision,
        mps_fallback=arguments.mps_fallback or None,
        num_processes=arguments.num_processes,
    )
    settings = flags.over(chosen.settings).over(DEFAULTS)
    environ = environment(flags, chosen.settings, os.environ)
    _tell_what_is_left(chosen)
    flag = flags.num_processes is not None or chosen.path is None
    check_machine(settings, environ, f"--num_processes {flags.num_processes}" if flag else str(chosen.path))
    words = [arguments.script, *arguments.arguments]
    if settings.num_processes == 1:
        become(command_line(words, arguments.module), environ)
    os.environ.update(environ)  # of which torchrun's processes begin with a copy
    return torchrun(words, arguments.module, settings.num_processes or 1)


def _tell_what_is_left(chosen: InForce) -> None:
    if chosen.left:
        keys = ", ".join(chosen.left)
        line = f"{chosen.path} has {keys}, which this command leaves out. `mps-trainer config show` says why."
        print(f"mps-trainer: {as_line(line)}", file=sys.stderr)
