"""Checks which of the known faults of torch on mps this device shows."""

from __future__ import annotations

from typing import Any

from ...devices.facts import apple_chip
from ...devices.known_faults import KNOWN_FAULTS, known_faults
from ...utils.text import sentence
from .lab import Lab
from .reproducers import REPRODUCERS
from .results import CheckFailed, CheckSkipped

_THREADS = {fault.issue: fault.thread for fault in KNOWN_FAULTS}
HARMLESS = "known, and harmless or rare"
STAYS = "known on this machine, and no update fixes it"
NOT_RUN = "could not be tested"


def reproduced(lab: Lab) -> tuple[str, dict[str, Any]]:
    """Fails for a fault that is unknown for this machine, or ends with an update and needs a warning. Names others."""
    faults = known_faults(lab.facts.torch_version, lab.facts.os_version, apple_chip())
    known = {fault.issue: fault for fault in faults}
    figures: dict[str, Any] = {}
    wrong: list[str] = []
    named: dict[str, list[str]] = {HARMLESS: [], STAYS: [], NOT_RUN: []}
    for issue, reproducer in REPRODUCERS.items():
        fault, name = known.get(issue), _THREADS[issue].replace(" issue", "")
        kind = None
        try:
            text = reproducer(lab.device)
        except CheckSkipped as skipped:
            kind, text = NOT_RUN, str(skipped)
        except Exception as error:  # a release without the operator or the format
            kind, text = NOT_RUN, f"{type(error).__name__}: {sentence(error)}"
        figures[name] = text or "absent"
        if text is None:
            continue
        if fault is not None and kind is None:
            ends = fault.torch_before or fault.macos_before  # else no newer torch or macOS is known to be free of it
            kind = HARMLESS if not fault.warns else None if ends else STAYS
        if kind is None:
            unknown = "" if fault else " (not known for this machine: please report it)"
            wrong.append(f"{_THREADS[issue]}: {text}{unknown}")
        else:
            named[kind].append(f"{name} ({text})")
    if wrong:
        raise CheckFailed("; ".join(wrong), **figures)
    absent = list(figures.values()).count("absent")
    parts = [f"{kind}: {', '.join(found)}" for kind, found in named.items() if found]
    return "; ".join([f"{absent} of {len(figures)} do not show", *parts]), figures
