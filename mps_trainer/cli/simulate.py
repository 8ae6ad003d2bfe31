"""`mps-trainer simulate`: runs a script on the simulated mps device and reports what it did there."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..devices.facts import FALLBACK
from ..refusal import WRONG_INPUT
from .script import add_script_arguments, check_paths, run_script, write_json


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "simulate",
        help="run a script on a simulated mps device, on Linux",
        description="Run a script on a simulated mps device: what a Mac refuses fails, and a report at the end says "
        "what ran on the CPU, waited, was copied, was compiled and took memory. The exit status is the script's; 2 "
        "when it could not be started.",
    )
    command.add_argument(
        "--memory",
        default="16GB",
        help="what Metal recommends as the maximum; allocations past it fail. Default: %(default)s, a Mac of 24 GB",
    )
    command.add_argument(
        "--same-draws-as-cpu",
        action="store_true",
        help="draw the random numbers that the CPU would, to compare a run with one on the CPU",
    )
    add_script_arguments(command)
    command.set_defaults(run=run, failure=WRONG_INPUT)


def run(arguments: argparse.Namespace) -> int:
    """Runs the script and returns its exit status."""
    check_paths(arguments)
    if arguments.fallback:
        os.environ[FALLBACK] = "1"  # before the import of torch below, which reads it
    from .. import simulator

    simulator.hide_cuda()
    device = simulator.activate(memory=arguments.memory, same_draws_as_cpu=arguments.same_draws_as_cpu)
    status = run_script(arguments.script, arguments.arguments)
    report = device.report()
    print(report, file=sys.stderr)
    if arguments.json is not None:
        write_json(arguments.json, {"exit_status": status, **report.to_dict()})
    return status
