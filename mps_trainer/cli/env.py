"""`mps-trainer env`: prints the facts for a bug report as a Markdown list."""

from __future__ import annotations

import argparse
from typing import Any

from ..devices.facts import PACKAGES, MachineFacts, for_a_report, gather_facts, machine_line, system_line
from ..devices.findings import decide, findings
from ..utils.text import as_line
from ..version import __version__
from .screen import chip, python


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "env",
        opening="example: mps-trainer env",
        help="print versions and settings for a bug report",
        description="Print the facts for a bug report as a Markdown list: versions, machine, device, findings and "
        "environment variables. The list shows the home folder as ~, and only those environment variables that affect "
        "training. The exit status is 0.",
    )
    command.set_defaults(failure=1)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Prints the list; returns 0."""
    print(listing(for_a_report(gather_facts())))
    return 0


def listing(facts: MachineFacts) -> str:
    """Returns the list, one entry per line."""
    versions = {"mps_trainer": __version__, **{name: facts.packages.get(name, "not installed") for name in PACKAGES}}
    if facts.torch_version is not None:
        versions["torch"] = facts.torch_version  # has the build in it: 2.13.0+cpu
    decision, refusal = decide(facts)
    machine = machine_line({**vars(facts), "chip": chip(facts)}, "chip", "model", "memory_bytes")
    entries = [
        *versions.items(),
        ("Python", python(facts)),
        ("system", system_line(vars(facts))),
        ("machine", machine or "unknown"),
        ("device", f"none. {refusal}" if decision is None else f"{decision.name}: {decision.reason}"),
        ("findings", "; ".join(f"{found.severity} {found.name}" for found in findings(facts)) or "none"),
        ("variables", ", ".join(f"{name}={value}" for name, value in facts.environment.items()) or "none set"),
    ]
    lines = {name: as_line(value).replace("`", "'") for name, value in entries}  # a backtick would end the code
    return "\n".join(f"- {name}: `{line}`" for name, line in lines.items())
