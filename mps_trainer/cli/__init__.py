"""The command `mps-trainer`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from ..devices import Decision, DeviceRequest, gather_facts, resolve
from ..errors import MisconfigurationException
from ..version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; `argv` defaults to the command line."""
    arguments = _parser().parse_args(argv)
    try:
        return doctor(as_json=arguments.json)
    except MisconfigurationException as error:
        print(f"mps-trainer: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mps-trainer", description="Fine-tune models on a Mac.")
    parser.add_argument("--version", action="version", version=f"mps-trainer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    command = commands.add_parser(
        "doctor",
        help="say which device training would use here, and why not the others",
        description="Say which device training would use here, and why not the others. The exit status is 0 when the "
        "best device of this machine is usable, 1 when software stands in its way.",
    )
    command.add_argument("--json", action="store_true", help="print the decision and the facts as JSON")
    return parser


def doctor(as_json: bool = False) -> int:
    """Print the decision for this machine; 0 when its best device is usable, else 1."""
    facts = gather_facts()
    decision: Decision | None = None
    try:
        decision = resolve(DeviceRequest(), facts)
    finally:
        if as_json:
            print(json.dumps({"decision": decision and decision.to_dict(), "facts": facts.to_dict()}, indent=2))
    if not as_json:
        print(decision)
    return int(any(other.repairable for other in decision.rejected))
