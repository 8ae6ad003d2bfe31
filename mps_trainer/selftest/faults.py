"""Checks which of the known faults of torch on mps this device shows."""

from __future__ import annotations

from typing import Any

from ..devices.facts import apple_chip
from ..devices.known_faults import KNOWN_FAULTS, known_faults
from ..utils.text import sentence
from .lab import Lab
from .reproducers import REPRODUCERS
from .results import CheckFailed, CheckSkipped

ABSENT, SHOWN, NOT_RUN = "absent", "shown", "not run"
_THREADS = {fault.issue: fault.thread for fault in KNOWN_FAULTS}
_SHORT = {issue: thread.replace(" issue", "") for issue, thread in _THREADS.items()}


def reproduced(lab: Lab) -> tuple[str, dict[str, Any]]:
    """Fails for a fault that is unknown for this machine, or ends with an update and needs a warning. Names others."""
    known = known_faults(lab.facts.torch_version, lab.facts.os_version, apple_chip())
    unwarned = {fault.issue for fault in known if not fault.warns}
    # no newer torch or macOS is known to be free of these
    to_stay = {fault.issue for fault in known if fault.warns and not (fault.torch_before or fault.macos_before)}
    found = {issue: _outcome(issue, lab) for issue in REPRODUCERS}
    figures = {_SHORT[issue]: text or status for issue, (status, text) in found.items()}
    shown = {issue: text for issue, (status, text) in found.items() if status == SHOWN}
    wrong = [
        f"{_THREADS[issue]}: {text}"
        + ("" if issue in {fault.issue for fault in known} else " (not known for this machine: please report it)")
        for issue, text in shown.items()
        if issue not in unwarned | to_stay
    ]
    if wrong:
        raise CheckFailed("; ".join(wrong), **figures)
    parts = [
        f"{sum(status == ABSENT for status, _ in found.values())} of {len(found)} do not show",
        _named("known, and harmless or rare", {issue: shown[issue] for issue in shown if issue in unwarned}),
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
    except CheckSkipped as skipped:
        return NOT_RUN, str(skipped)
    except Exception as error:  # a release without the operator or the format
        return NOT_RUN, f"{type(error).__name__}: {sentence(error)}"
    return (ABSENT, "") if wrong is None else (SHOWN, wrong)


def _named(about: str, faults: dict[int, str]) -> str:
    return f"{about}: {', '.join(f'{_SHORT[issue]} ({text})' for issue, text in faults.items())}" if faults else ""
