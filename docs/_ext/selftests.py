"""The directives `selftests` and `speeds`: tables of what people ran on their Macs, from the files they gave.

Only the directives need Sphinx; `read()` and `read_speed()` are plain functions.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from tables import table

from mps_trainer.devices.facts import MachineFacts
from mps_trainer.devices.recorded import read_facts
from mps_trainer.tools.speed import SpeedReport
from mps_trainer.tools.speed.results import ratio_text, step_text
from mps_trainer.utils.text import format_bytes

FOLDER = Path(__file__).parents[1] / "selftests"


@dataclass(frozen=True)
class Row:
    """One file: what machine it is of, what ran there, and what came of the checks."""

    file: str
    machine: str
    versions: str
    checks: str


@dataclass(frozen=True)
class SpeedRow:
    """One workload of one file: the steps of both Trainers, and the memory of ours."""

    file: str
    machine: str
    workload: str
    ours: str
    transformers: str
    ratio: str
    memory: str


def files(kind: str) -> list[Path]:
    """Returns the files that `mps-trainer` wrote by this command: "selftest" or "speed"."""
    key = {"selftest": "checks", "speed": "workloads"}[kind]
    paths = sorted(FOLDER.glob("*.json"))
    return [path for path in paths if key in json.loads(path.read_text(encoding="utf-8"))]


def read(path: Path) -> Row:
    """Returns what the table shows of a file of `mps-trainer selftest`.

    Raises:
        ValueError: if it is not of a Mac's GPU, or shows somebody's home folder.
        MisconfigurationException: if its facts cannot be read.
    """
    report, facts = _of_a_mac(path)
    counts = Counter(check["status"] for check in report["checks"])
    named = [f"{check['name']} failed" for check in report["checks"] if check["status"] == "failed"]
    return Row(
        path.name,
        _machine(facts),
        _versions(report, facts),
        "; ".join([f"{counts['passed']} of {len(report['checks'])} passed", *named]),
    )


def read_speed(path: Path) -> list[SpeedRow]:
    """Returns what the table shows of a file of `mps-trainer speed`: a row for each training in real sizes.

    Raises:
        ValueError: if it is not of a Mac's GPU, or shows somebody's home folder.
        MisconfigurationException: if it is no such report.
    """
    content, facts = _of_a_mac(path)
    report = SpeedReport.from_dict(content)
    machine = f"{_machine(facts)}, {_versions(content, facts)}"
    unjudged = "" if report.judged else f"not judged: {'; '.join(report.unjudged)}"
    return [
        SpeedRow(
            path.name,
            machine,
            f"{result.name}, {result.sizes}",
            step_text(result.ours),
            step_text(result.theirs),
            unjudged or ratio_text(result, report.judged),
            " / ".join(
                "–" if size is None else format_bytes(size)
                for size in (result.ours and result.ours.peak_bytes, result.estimated_bytes)
            ),
        )
        for result in report.workloads
        if result.is_training and not report.smaller
    ]


def _of_a_mac(path: Path) -> tuple[dict[str, Any], MachineFacts]:
    text = path.read_text(encoding="utf-8")
    report = json.loads(text)
    facts, _ = read_facts(str(path))
    if report["simulated"] or report["device"] != "mps" or facts.system != "Darwin":
        device = report["device"] + ", simulated" * report["simulated"]
        raise ValueError(f"{path.name} is of {device} on {facts.system}, not of a Mac's GPU.")
    if "/Users/" in text:
        raise ValueError(f"{path.name} has a home folder in it: write ~ in its place.")
    return report, facts


def _machine(facts: MachineFacts) -> str:
    virtual = ", virtual" if facts.virtual_machine else ""
    return f"{facts.chip}, {format_bytes(facts.memory_bytes or 0)}{virtual}"


def _versions(report: dict[str, Any], facts: MachineFacts) -> str:
    versions = report["versions"]
    return f"macOS {facts.os_version}, torch {versions['torch']}, mps_trainer {versions['mps_trainer']}"


class Selftests(Directive):
    """`{selftests}`."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        rows = [read(path) for path in files("selftest")]
        if not rows:
            return [nodes.paragraph(text="No Mac has been tested yet.")]
        cells = [(row.file, row.machine, row.versions, row.checks) for row in rows]
        return [table(cells, ("File", "Mac", "With", "Checks"), (20, 25, 30, 25), code=1)]


class Speeds(Directive):
    """`{speeds}`."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        rows = [row for path in files("speed") for row in read_speed(path)]
        if not rows:
            return [nodes.paragraph(text="No Mac has been measured yet.")]
        cells = [
            (row.file, row.machine, row.workload, row.ours, row.transformers, row.ratio, row.memory) for row in rows
        ]
        head = ("File", "Mac", "Step", "mps_trainer", "transformers", "Time, relative", "Peak / fit")
        return [table(cells, head, (14, 20, 20, 12, 12, 12, 10), code=1)]


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("selftests", Selftests)
    app.add_directive("speeds", Speeds)
    app.connect("env-get-outdated", lambda *_: ["selftest"])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
