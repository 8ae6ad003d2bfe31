"""Checks which of the known faults of torch on mps this device shows."""

from __future__ import annotations

from typing import Any

from ..devices.facts import apple_chip
from ..devices.known_faults import KNOWN_FAULTS, known_faults
from ..refusal import sentence
from .lab import Lab
from .reproducers import REPRODUCERS
from .results import CheckFailed

ABSENT, SHOWN, NOT_RUN = "absent", "shown", "not run"
_HARMLESS = {fault.issue for fault in KNOWN_FAULTS if not fault.warns}


def reproduced(lab: Lab) -> tuple[str, dict[str, Any]]:
    """Fails for a fault that is unknown for this machine or fixed by an update. Names the others."""
    known = {fault.issue: fault for fault in known_faults(lab.facts.torch_version, lab.facts.os_version, apple_chip())}
    to_stay = {issue for issue, fault in known.items() if not fault.can_be_updated_away}
    found = {issue: _outcome(issue, lab) for issue in REPRODUCERS}
    figures = {f"pytorch {issue}": text or status for issue, (status, text) in found.items()}
    shown = {issue: text for issue, (status, text) in found.items() if status == SHOWN}
    wrong = [
        f"pytorch issue {issue}: {text}"
        + ("" if issue in known else " (not known for this machine: please report it)")
        for issue, text in shown.items()
        if issue not in _HARMLESS | to_stay
    ]
    if wrong:
        raise CheckFailed("; ".join(wrong), **figures)
    parts = [
        f"{sum(status == ABSENT for status, _ in found.values())} of {len(found)} do not show",
        _named("harmless", {issue: text for issue, text in shown.items() if issue in _HARMLESS}),
        _named(
            "known on this machine, and no update fixes it",
            {issue: shown[issue] for issue in shown if issue in to_stay},
        ),
        _named("could not be tested", {issue: text for issue, (status, text) in found.items() if status == NOT_RUN}),
    ]
    return "; ".join(filter(None, parts)), figures


def _outcome(issue: int, lab: Lab) -> tuple[str, str]:
    try:
        wrong = REPRODUCERS[issue](lab.device)
    except Exception as error:  # a release without the operator or the format
        return NOT_RUN, f"{type(error).__name__}: {sentence(error)}"
    return (ABSENT, "") if wrong is None else (SHOWN, wrong)


def _named(about: str, faults: dict[int, str]) -> str:
    return f"{about}: {', '.join(f'pytorch {issue} ({text})' for issue, text in faults.items())}" if faults else ""
