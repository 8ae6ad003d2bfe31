"""`mps-trainer simulate`: runs a script on the simulated mps device and prints a report."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

from ..devices.facts import FALLBACK
from ..utils.import_watch import when_imported
from .script import add_flags, add_script, check_paths, run_script, write_json


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "simulate",
        opening="example: mps-trainer simulate train.py --output_dir out",
        help="run a script on a simulated mps device, on Linux",
        description="Run a script on a simulated mps device, which fails where a Mac would fail. A report at the end "
        "lists CPU fallbacks, blocking syncs, copies, compiled kernels and memory. The exit status is the script's, "
        "or 2 if it did not start.",
    )
    command.add_argument(
        "--memory",
        default="16GB",
        help="memory limit, as Metal would recommend it. Default: %(default)s, as on a Mac of 24 GB",
    )
    command.add_argument(
        "--same-draws-as-cpu",
        action="store_true",
        help="use the random numbers of the CPU, to compare with a run there",
    )
    add_flags(command, "--json", "--fallback")
    add_script(command)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the script and returns its exit status."""
    check_paths(arguments)
    if arguments.fallback:
        os.environ[FALLBACK] = "1"  # torch reads it at its import by the script
    devices: list[Any] = []

    def activate(torch: Any) -> None:
        from ..tools.simulator import activate

        devices.append(activate(memory=arguments.memory, same_draws_as_cpu=arguments.same_draws_as_cpu))

    # the script may set variables before it imports torch
    with when_imported(__name__, {"torch": activate}, before=_hide_cuda):
        _check_machine_and_memory(arguments.memory)
        status = run_script(arguments.script, arguments.arguments, arguments.module)
        if not devices and "torch._C" in sys.modules:  # its import failed, which the script's traceback shows
            return status
        importlib.import_module("torch")  # if the script has not
    report = devices[0].report()
    print(report, file=sys.stderr)
    write_json(arguments.json, {"exit_status": status, **report.to_dict()})
    return status


def _hide_cuda() -> None:
    from ..tools.simulator.cuda import hide_cuda

    hide_cuda()


def _check_machine_and_memory(memory: str) -> None:
    """Compiles the device if needed. Raises MisconfigurationException where it cannot run."""
    from ..tools.simulator.build import build_device
    from ..tools.simulator.cuda import build_no_cuda
    from ..tools.simulator.memory_limit import high_watermark, parse_bytes

    parse_bytes(memory)
    high_watermark()
    build_device()
    build_no_cuda()
