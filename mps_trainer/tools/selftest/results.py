"""Holds the results of the checks, as data and as a table."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...devices.facts import machine_line, system_line

WIDTH = 100

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class CheckFailed(Exception):
    """A check failed. The message is a clause with the finding; `figures` are its numbers."""

    def __init__(self, found: str, **figures: Any) -> None:
        super().__init__(found)
        self.figures = figures


class CheckSkipped(Exception):
    """There is nothing to check here; the message says why, as a clause."""


@dataclass(frozen=True)
class CheckResult:
    """One check. `text` is what was measured, or why it failed or was skipped; `figures` the numbers by name."""

    name: str
    status: str  # "passed", "failed" or "skipped"
    text: str
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SelftestReport:
    """Holds all checks with device, versions and machine facts for a bug report."""

    device: str
    simulated: bool
    versions: dict[str, str]
    decision: dict[str, Any]
    facts: dict[str, Any]
    known_faults: tuple[str, ...]
    checks: tuple[CheckResult, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return all(check.status != FAILED for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Returns every field and `passed` in types that JSON has."""
        return _of_json({"passed": self.passed, **dataclasses.asdict(self)})

    def __str__(self) -> str:
        counts = ", ".join(
            f"{sum(check.status == status for check in self.checks)} {status}" for status in (PASSED, FAILED, SKIPPED)
        )
        faults = [f"Known fault of this torch on this macOS: {fault}." for fault in self.known_faults]
        end = f"{counts}, in {self.seconds:.1f} s."
        return "\n".join([*self._head(), "", *table(self.checks), "", *faults, end, f"Verdict: {self.verdict}"])

    @property
    def verdict(self) -> str:
        """Returns a sentence that says whether training works on the device, and what to do if not."""
        device = f"the simulated {self.device} device" if self.simulated else self.device
        failed = [check.name for check in self.checks if check.status == FAILED]
        if not failed:
            return f"training works on {device}."
        advice = "Run `mps-trainer doctor`; for a bug report, attach the file of `mps-trainer selftest --json FILE`."
        return f"training does not work correctly on {device}: {', '.join(failed)} failed. {advice}"

    def _head(self) -> list[str]:
        """Returns the lines with device and versions. They name a simulated device as simulated."""
        facts = {**self.facts, "system": system_line(self.facts)}
        machine = machine_line(facts, "chip", "memory_bytes", "system", "machine")
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [f"Checked: {self.device}{', SIMULATED' if self.simulated else ''}; {machine}"]
        lines += textwrap.wrap(versions, WIDTH, break_long_words=False, break_on_hyphens=False)
        if self.simulated:
            lines.append("The device is simulated on the CPU: its speed and its kernels differ from a Mac's.")
        return lines + [
            f"Not checked: {other['name']}, because {other['why']}. `mps-trainer doctor` says what to do."
            for other in self.decision["rejected"]
            if other["repairable"]
        ]


def _of_json(value: Any) -> Any:
    """Returns `value` with nan and infinity, which JSON lacks, as words."""
    if isinstance(value, dict):
        return {key: _of_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_of_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def table(checks: Sequence[CheckResult]) -> list[str]:
    """Returns a line for each check. A long text continues on the next line."""
    width = max((len(check.name) for check in checks), default=0)
    lines = [f"{'check':<{width}}  {'result':<7}  {'s':>5}  what was found"]
    for check in checks:
        start = f"{check.name:<{width}}  {check.status:<7}  {check.seconds:>5.1f}  "
        lines += textwrap.wrap(
            check.text,
            WIDTH,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [start.rstrip()]
    return lines
