"""`mps-trainer speed`: measures the speed of training on this machine."""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

from ..devices import DeviceRequest, gather_facts, resolve
from ..devices.watermarks import memory_limit
from .script import add_flags, check_report, write_json


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "speed",
        opening="example: mps-trainer speed --quick",
        help="measure the speed of training here",
        description="Measure steps of training on the device that training would use here: LoRA on a language model, "
        "embeddings and a classifier, in real sizes with random weights, with this Trainer and with transformers' in "
        "alternation. Also measure attention, and the time of an operator, a wait and a copy. It should take about "
        "five minutes on a Mac, and longer on a CPU; it needs no network. The result is a table to paste. Times are "
        "not compared if the machine is hot, busy or saves energy. The exit status is 0 if this Trainer ran every "
        "workload that there is memory for, 1 if one failed, and 2 if nothing could be measured.",
    )
    command.add_argument(
        "--quick",
        action="store_true",
        help="take about a minute: fewer workloads and steps, and smaller sizes where no GPU computes",
    )
    add_flags(command, "--json")
    command.add_argument("--simulate", action="store_true", help="measure a simulated mps device, on Linux")
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the workloads and prints the table; returns 0 or 1 as the help says."""
    tell = functools.partial(print, end="", file=sys.stderr, flush=True)
    if arguments.json is not None:
        check_report(arguments.json)
    if arguments.simulate:
        from ..tools import simulator

        simulator.hide_cuda()  # before the import of torch
    resolve(DeviceRequest(), gather_facts(memory_limit=memory_limit(None)))  # refuses what cannot train at all
    if arguments.simulate:
        simulator.activate()
    from ..guards.awake import awake
    from ..tools.speed import run_speed
    from ..tools.speed.workloads import FULL, QUICK

    with awake(True):
        report = run_speed(QUICK if arguments.quick else FULL, tell)
    print(report, flush=True)
    write_json(arguments.json, report.to_dict())
    return 0 if report.passed else 1
