"""The check of the known faults of torch on mps: which of them this device shows."""

from __future__ import annotations

from typing import Any

from ..devices.facts import apple_chip
from ..devices.known_faults import KNOWN_FAULTS, known_faults
from ..refusal import sentence
from .lab import Lab
from .report import CheckFailed
from .reproducers import REPRODUCERS

_HARMLESS = {fault.issue for fault in KNOWN_FAULTS if not fault.warns}


def reproduced(lab: Lab) -> tuple[str, dict[str, Any]]:
    """None of the faults shows that make results wrong; those that torch is known to have here are named as known."""
    found = {issue: _outcome(issue, lab) for issue in REPRODUCERS}
    shown = {issue: text for issue, (status, text) in found.items() if status == "shown"}
    figures = {f"pytorch {issue}": text or status for issue, (status, text) in found.items()}
    wrong = {issue: text for issue, text in shown.items() if issue not in _HARMLESS}
    if wrong:
        known = {fault.issue for fault in known_faults(lab.facts.torch_version, lab.facts.os_version, apple_chip())}
        raise CheckFailed("; ".join(_told(issue, text, issue in known) for issue, text in wrong.items()), **figures)
    text = f"{sum(status == 'absent' for status, _ in found.values())} of {len(found)} do not show"
    for status, about in (("shown", "shown, and harmless"), ("not run", "could not be looked for")):
        others = [f"pytorch {issue} ({text})" for issue, (other, text) in found.items() if other == status]
        text += f"; {about}: {', '.join(others)}" if others else ""
    return text, figures


def _outcome(issue: int, lab: Lab) -> tuple[str, str]:
    try:
        wrong = REPRODUCERS[issue](lab.device)
    except Exception as error:  # a release without the operator or the format
        return "not run", f"{type(error).__name__}: {sentence(error)}"
    return ("absent", "") if wrong is None else ("shown", wrong)


def _told(issue: int, text: str, known: bool) -> str:
    return f"pytorch issue {issue}: {text}" + ("" if known else " (not known of this machine: please report it)")
