"""`mps-trainer launch`: runs a script with the settings of `mps-trainer config`, in one or several processes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..arguments.model import PRECISIONS
from ..devices import gather_facts
from ..devices.launchers import LAUNCHER_INTEGERS, SLURM_TASKS
from ..errors import MisconfigurationException
from ..launching.config_file import in_force
from ..launching.hosts import run_on_hosts
from ..launching.processes import check_machine, torchrun
from ..launching.settings import COMMAND, DEFAULTS, command_of, environment, read_settings
from ..utils.text import as_line
from .script import add_restarts, add_script, check_restarts, check_script


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "launch",
        opening="example: mps-trainer launch --mixed_precision bf16 train.py --output_dir out",
        usage="%(prog)s [FLAG ...] SCRIPT ...",  # the flags below fill a screen
        help="run a script with the settings of `config`",
        description="Run a script with settings from a file, overridden by environment variables, and these by "
        "flags. The exit status is the script's, or 2.",
    )
    # a flag sets the setting of its dest
    command.add_argument(
        "--cpu", dest="device", action="store_const", const="cpu", help="train on the CPU, even where there is a GPU"
    )
    command.add_argument("--mixed_precision", choices=PRECISIONS, help="number format of autocast (default: no)")
    command.add_argument(
        "--mps_fallback", action="store_const", const=True, help="run operators without an MPS kernel on the CPU"
    )
    command.add_argument("--num_processes", metavar="N", help="number of processes, on the CPU or GPUs (default: 1)")
    command.add_argument(
        "--hosts",
        metavar="HOST,HOST",
        type=lambda text: text.split(","),
        help="train on these machines together, over ssh and MLX",
    )
    command.add_argument("--config_file", metavar="FILE", help="settings of `config` or `accelerate config`")
    add_restarts(command)
    add_script(command)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Starts the script and returns its exit status. With one process it takes this one's place."""
    check_script(arguments)
    check_restarts(arguments)
    loaded = in_force(arguments.config_file, os.environ)
    flags = read_settings({name: getattr(arguments, name, None) for name in DEFAULTS}, "The command line")
    settings = {**DEFAULTS, **loaded.settings, **flags}
    environ = environment(flags, loaded.settings, os.environ)
    environ[COMMAND] = command_of(arguments.typed, os.environ)
    if loaded.ignored:
        keys = ", ".join(loaded.ignored)
        line = f"{loaded.path} has {keys}, which this command leaves out. `mps-trainer config show` says why."
        print(f"mps-trainer: {as_line(line)}", file=sys.stderr)
    count = settings["num_processes"]
    source = f"--num_processes {count}" if "num_processes" in flags or loaded.path is None else str(loaded.path)
    if arguments.hosts and (arguments.restarts or count > 1):
        other = "--restarts" if arguments.restarts else f"{source}: {count} processes"
        raise MisconfigurationException(
            f"{other} and --hosts exclude each other: --hosts starts one process on each machine. Leave one out."
        )
    if count > 1 or settings["device"] not in ("auto", "cpu"):  # else torch is not imported
        unlaunched = {name: value for name, value in environ.items() if name not in (*LAUNCHER_INTEGERS, SLURM_TASKS)}
        try:
            check_machine(settings, gather_facts(environ=unlaunched))
        except MisconfigurationException as error:
            raise MisconfigurationException(f"{source}: {error}") from error
    script = [*(["-m"] if arguments.module else []), arguments.script, *arguments.arguments]
    command = [sys.executable, *script]
    if arguments.hosts:
        return run_on_hosts(arguments.hosts, command, environ)
    if arguments.restarts:
        from .supervisor import supervise

        if count > 1:
            file = ["--config_file", arguments.config_file] if arguments.config_file else []
            again = ["-m", "mps_trainer", "launch", "--num_processes", str(count), *file]
            command = [sys.executable, *again, *script]
        return supervise(command, arguments.restarts, environ, arguments.hang_timeout, is_launcher=count > 1)
    if count == 1:
        os.execve(sys.executable, command, environ)
    os.environ.update(environ)  # torchrun's processes begin with a copy of it
    # torchrun would give each process one thread, and warn of it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // count)))
    return torchrun(script, count)
