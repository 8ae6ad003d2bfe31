"""The table of docs/selftest.md: the selftests that people ran on their Macs, from the files they gave."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from markdown_tables import code, table

from mps_trainer.devices.recorded import read_facts
from mps_trainer.utils.text import format_bytes

FOLDER = Path(__file__).parents[1] / "selftests"


@dataclass(frozen=True)
class Row:
    """One file: what machine it is of, what ran there, and what came of the checks."""

    file: str
    machine: str
    versions: str
    checks: str


def read(path: Path) -> Row:
    """Returns what the table shows of a file.

    Raises:
        ValueError: if it is not of a Mac's GPU, or shows somebody's home folder.
        MisconfigurationException: if its facts cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    report = json.loads(text)
    facts, _ = read_facts(str(path))
    if report["simulated"] or report["device"] != "mps" or facts.system != "Darwin":
        device = report["device"] + ", simulated" * report["simulated"]
        raise ValueError(f"{path.name} is of {device} on {facts.system}, not of a Mac's GPU.")
    if "/Users/" in text:
        raise ValueError(f"{path.name} has a home folder in it: write ~ in its place.")
    counts = Counter(check["status"] for check in report["checks"])
    named = [f"{check['name']} failed" for check in report["checks"] if check["status"] == "failed"]
    versions = report["versions"]
    return Row(
        path.name,
        f"{facts.chip}, {format_bytes(facts.memory_bytes or 0)}",
        f"macOS {facts.os_version}, torch {versions['torch']}, mps_trainer {versions['mps_trainer']}",
        "; ".join([f"{counts['passed']} of {len(report['checks'])} passed", *named]),
    )


def selftests_table() -> str:
    rows = [read(path) for path in sorted(FOLDER.glob("*.json"))]
    if not rows:
        return "No Mac has been tested yet."
    return table(("File", "Mac", "With", "Checks"), [(code(r.file), r.machine, r.versions, r.checks) for r in rows])
