"""`mps-trainer selftest`: tests whether training works on this machine."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from typing import Any

from ..devices import DeviceRequest, gather_facts, resolve
from ..devices.facts import FALLBACK
from ..devices.watermarks import memory_limit
from .script import add_flags, check_report, write_json


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "selftest",
        opening="example: mps-trainer selftest",
        help="train a tiny model and check the results",
        description="Train a tiny model on the device that training would use here, and compare it with the CPU. The "
        "checks cover losses, bf16 and fp16, save and resume, the memory limit, operators without an MPS kernel, and "
        "known faults of torch. They take less than a minute and need no network. The exit status is 0 when no check "
        "failed, 1 when one failed, and 2 when nothing could be checked.",
    )
    add_flags(command, "--json")
    command.add_argument("--simulate", action="store_true", help="check a simulated mps device, on Linux")
    add_flags(command, "--fallback")
    return command


def run(arguments: argparse.Namespace) -> int:
    """Runs the checks; returns 0, 1 or 2 as the help says."""
    tell = functools.partial(print, end="", file=sys.stderr, flush=True)
    if arguments.json is not None:
        check_report(arguments.json)
    if arguments.fallback:
        os.environ[FALLBACK] = "1"  # torch reads it at its import below
    if arguments.simulate:
        from ..tools import simulator

        simulator.hide_cuda()  # before the import of torch
    if sys.stderr.isatty():
        tell("Loading torch and transformers ...\n")
    resolve(DeviceRequest(), gather_facts(memory_limit=memory_limit(None)))  # refuses what cannot train at all
    simulated = simulator.activate() if arguments.simulate else None
    from ..tools.selftest import run_selftest

    report = run_selftest(simulated, tell)
    print(report, flush=True)
    write_json(arguments.json, report.to_dict())
    return 0 if report.passed else 1
