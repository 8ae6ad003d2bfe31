"""`mps-trainer doctor`: finds the device that this machine trains on, and what to put right."""

from __future__ import annotations

import argparse
import json
import shutil
from typing import Any

from ..devices.facts import MachineFacts, gather_all_facts
from ..devices.finding_type import ERROR
from ..devices.findings import decide, findings
from ..devices.recorded import WRITER, Recorded, names, read_facts
from ..refusal import WRONG_INPUT
from ..version import __version__
from .screen import screen

DESCRIPTION = """\
Say which device training would use here, why not the others, and what is wrong
with the machine. Each finding has its remedy; the one that gains most is on
top. Plain text, never coloured."""
EPILOG = """\
exit status:
  0  training would use the best device of this machine
  1  something that can be put right keeps it from that; the first line says
     what to do, and so does the first finding
  2  a wrong flag or a wrong file

A bug report wants `mps-trainer env`, and the file that
`mps-trainer doctor --json > facts.json` writes."""


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "doctor",
        help="say what this machine trains on, and what to put right",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print the decision, the findings and the facts as JSON")
    command.add_argument(
        "--facts", metavar="FILE", help="answer for the machine on which doctor --json wrote FILE, not for this one"
    )
    command.set_defaults(run=run, failure=1)


def run(arguments: argparse.Namespace) -> int:
    """Prints the screen or the JSON; returns 0 when nothing stands in the way, else 1."""
    if arguments.facts is None:
        recorded, source = Recorded(gather_all_facts()), ""
    else:
        arguments.failure = WRONG_INPUT  # what fails from here on is the file
        recorded = read_facts(arguments.facts)
        source = _source(arguments.facts, recorded)
    facts = recorded.facts
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
    """Returns the exit status: 1 where something that can be put right keeps training from the best device, else 0."""
    return int(any(finding.severity == ERROR for finding in findings(facts)))


def _source(path: str, recorded: Recorded) -> str:
    writer = f", written by mps_trainer {recorded.writer}" if recorded.writer else ""
    unknown = f"; left out, unknown to {__version__}: {names(recorded.unknown)}" if recorded.unknown else ""
    return f"in {path}{writer}{unknown}"
