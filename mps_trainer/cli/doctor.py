"""`mps-trainer doctor`: shows the device that this machine trains on and what to fix."""

from __future__ import annotations

import argparse
import json
import shutil
from typing import Any

from ..devices.facts import MachineFacts, for_a_report, gather_facts
from ..devices.findings import ERROR, decide, findings
from ..devices.recorded import WRITER, read_facts
from ..utils.refusal import WRONG_INPUT
from ..version import __version__
from .screen import screen

DESCRIPTION = """\
Show which device training uses here, why it does not use the others, and what
is wrong with the machine. Each finding has a remedy; the most useful one comes
first. The output is plain text without colours."""
EPILOG = """\
exit status:
  0  training uses the best device of this machine
  1  a problem that you can fix prevents that; the first line says what to do
  2  a wrong flag or a wrong file

For a bug report, paste the output of `mps-trainer env` and attach the file that
`mps-trainer doctor --json > facts.json` writes."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "doctor",
        opening="example: mps-trainer doctor",
        help="show the device that training uses and what to fix",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print the decision, the findings and the facts as JSON")
    command.add_argument(
        "--facts", metavar="FILE", help="diagnose another machine from FILE, which doctor --json wrote there"
    )
    command.set_defaults(failure=1)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Prints the screen or the JSON; returns 1 if a problem can be fixed, else 0."""
    if arguments.facts is None:
        facts, source = for_a_report(gather_facts()), ""
    else:
        arguments.failure = WRONG_INPUT  # from here on, the file is at fault
        facts, source = read_facts(arguments.facts)
    if arguments.json:
        print(json.dumps(report(facts), indent=2))
    else:
        print(screen(facts, shutil.get_terminal_size().columns, source))
    return status(facts)


def report(facts: MachineFacts) -> dict[str, Any]:
    """Returns the output of --json."""
    decision, refusal = decide(facts)
    return {
        WRITER: __version__,
        "decision": decision and decision.to_dict(),
        "refusal": refusal or None,
        "findings": [finding.to_dict() for finding in findings(facts)],
        "facts": facts.to_dict(),
    }


def status(facts: MachineFacts) -> int:
    """Returns the exit status: 1 if a problem that can be fixed keeps training from the best device, else 0."""
    return int(any(finding.severity == ERROR for finding in findings(facts)))
