"""`mps-trainer doctor`: which device training would use here, and why not the others."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..devices import Decision, DeviceRequest, gather_facts, resolve
from ..devices.known_faults import known_faults


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "doctor",
        help="say which device training would use here, and why not the others",
        description="Say which device training would use here, and why not the others. The exit status is 0 when the "
        "best device of this machine is usable, 1 when software stands in its way.",
    )
    command.add_argument("--json", action="store_true", help="print the decision and the facts as JSON")
    command.set_defaults(run=run, failure=1)


def run(arguments: argparse.Namespace) -> int:
    """Print the decision for this machine; 0 when its best device is usable, else 1."""
    facts = gather_facts()
    decision: Decision | None = None
    try:
        decision = resolve(DeviceRequest(), facts)
    finally:
        if arguments.json:
            print(json.dumps({"decision": decision and decision.to_dict(), "facts": facts.to_dict()}, indent=2))
    if not arguments.json:
        print(decision)
        if decision is not None and decision.type == "mps" and facts.system == "Darwin":
            for fault in known_faults(facts.torch_version, facts.os_version):
                print(f"  known fault: {fault}.")
    return int(any(other.repairable for other in decision.rejected))
