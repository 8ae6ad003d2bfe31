"""Draws the screen of `mps-trainer doctor`: facts and findings as plain text of a given width."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Sequence

from ..devices.accelerators import ACCELERATORS, MPSAccelerator
from ..devices.facts import MachineFacts, machine_line, system_line
from ..devices.findings import ERROR, NOTE, Finding, decide, findings
from ..devices.probes import FALLBACK, switched_on, unreadable_switch
from ..devices.watermarks import HIGH, LOW, limits
from ..utils.text import as_line, format_bytes

NARROWEST, WIDEST = 60, 100
TALLEST = 40  # lines
_LABELS = 11  # columns
_COMMAND = re.compile(
    r"`[^`]+`"
    r"|(?:python -m pip|CONDA_SUBDIR=\S+|conda config) [^;`]+?(?=;|, then |, and |$)"
    r"|unset [A-Z]\w*(?: [A-Z]\w*)*"
)
_GLUE = "\0"  # between the words of a command; as_line leaves none in a text


def screen(facts: MachineFacts, width: int = 80, recorded: str = "") -> str:
    """Returns the output of doctor, in lines of at most `width` columns where no word is longer.

    Args:
        recorded: the source of the facts, if not this machine.
    """
    width = min(max(width, NARROWEST), WIDEST)
    found = findings(facts)
    for most in range(max((len(finding.details) for finding in found), default=0), -1, -1):
        kept = [_with_details(finding, most) for finding in found]
        lines = _lines(facts, kept, width, recorded)
        if len(lines) <= TALLEST:
            return "\n".join(lines)
    while len(lines) > TALLEST and len(kept) > 1:
        kept.pop()
        lines = [*_lines(facts, kept, width, recorded), f"And {len(found) - len(kept)} more, with --json."]
    return "\n".join(lines)


def _with_details(finding: Finding, most: int) -> Finding:
    """Returns `finding` with its first details, and the number of the others."""
    left_out = len(finding.details) - most
    if left_out <= 0:
        return finding
    return dataclasses.replace(finding, details=(*finding.details[:most], f"{left_out} more, which --json lists"))


def _lines(facts: MachineFacts, found: Sequence[Finding], width: int, recorded: str) -> list[str]:
    if found and found[0].severity != NOTE:  # the first is the one that gains most
        lines = _wrapped("Do this first: ", found[0].remedy, width, indent=2)
    else:
        decision, _ = decide(facts)
        device = "nothing" if decision is None else decision.name
        lines = _wrapped("", f"Nothing to fix. Training runs on {device}{_simulated(facts)}.", width)
    lines.append("")
    for label, text in [("recorded", recorded), *_rows(facts, found)]:
        if text:
            lines += _wrapped(f"{label:{_LABELS}}", text, width)
    if found:
        lines.append("")
    for number, finding in enumerate(found, start=1):
        lines += _finding(number, finding, width)
    return lines


def _simulated(facts: MachineFacts) -> str:
    return ", simulated on the CPU" if facts.mps_simulated else ""


def _rows(facts: MachineFacts, found: Sequence[Finding]) -> list[tuple[str, str]]:
    rows = [("machine", _machine(facts)), ("system", system_line(vars(facts))), ("python", python(facts))]
    rows.append(("torch", facts.torch_version or f"none ({facts.torch_error or 'not installed'})"))
    decision, refusal = decide(facts)
    if decision is None:
        errors = any(finding.severity == ERROR for finding in found)
        rows.append(("device", "none: training cannot run until this is fixed" if errors else f"none: {refusal}"))
        candidates = []
    else:
        rows.append(("device", f"{decision.name}{_simulated(facts)}: {decision.reason}"))
        candidates = list(decision.rejected)
    explained = {finding.device: number for number, finding in reversed(list(enumerate(found, start=1)))}
    for other in candidates:
        # another machine is no remedy for this one
        why = other.why if other.remedy.startswith("train on ") else f"{other.why}; {other.remedy}"
        rows.append((f"  not {other.name}", f"see {explained[other.name]}" if other.name in explained else why))
    if decision is not None and (advice := ACCELERATORS[decision.type].precision_advice(facts.cpu_bfloat16)):
        rows.append(("precision", advice))
    usable = MPSAccelerator.why_not(facts) is None
    if usable or (facts.system == "Darwin" and FALLBACK in facts.environment):
        rows.append(("fallback", _fallback(facts)))
    if usable:
        rows.append(("limits", _limits(facts)))
        rows.append(("", "mps-trainer fit SCRIPT says whether a training step fits"))
    if facts.cache_free_bytes is not None:
        rows.append(("disk", f"{format_bytes(facts.cache_free_bytes)} free for {facts.cache_folder}"))
    return rows


def _machine(facts: MachineFacts) -> str:
    parts = [machine_line({**vars(facts), "chip": chip(facts)}, "model", "chip", "memory_bytes")]
    if facts.recommended_bytes:
        parts.append(f"{format_bytes(facts.recommended_bytes)} for the GPU")
    if facts.virtual_machine:
        parts.append("virtual")
    return ", ".join(part for part in parts if part)


def chip(facts: MachineFacts) -> str:
    """Returns the name of the processor; Rosetta hides it, and says VirtualApple."""
    return f"Apple silicon, named {facts.chip} by Rosetta" if facts.rosetta and facts.chip else facts.chip or ""


def python(facts: MachineFacts) -> str:
    """Returns version, architecture and path."""
    how = " under Rosetta" if facts.rosetta else ""
    conda = "conda" if facts.conda else ""
    parts = [facts.python_version, facts.machine + how, conda, facts.python_executable]
    return ", ".join(part for part in parts if part)


def _fallback(facts: MachineFacts) -> str:
    if facts.fallback_set_too_late:
        return f"off: {FALLBACK} was set too late, after torch was imported"
    if unreadable_switch(facts.environment.get(FALLBACK)):
        return f"{FALLBACK}={facts.environment[FALLBACK]!r}, which is not a number"
    if switched_on(facts.environment.get(FALLBACK)):
        return f"on, set in time: an operator without a kernel for mps runs on the CPU ({FALLBACK})"
    return f"off: an operator without a kernel for mps is an error ({FALLBACK}=1 sends it to the CPU)"


def _limits(facts: MachineFacts) -> str:
    """Returns the watermarks of a run, in bytes where Metal's recommendation is known."""
    high, low = limits(facts.environment)
    source = HIGH if HIGH in facts.environment else "memory_fraction"
    if high == 0:
        return f"none ({source}): an allocation on mps fails when the Mac has no more memory"
    given_back = f"; unused memory is freed above {100 * low:.0f} %" if low else "; unused memory is kept"
    own = f" ({LOW})" if LOW in facts.environment else ""
    share = f"{100 * high:.3g} % of Metal's recommendation, {source}"
    at = f"{format_bytes(high * facts.recommended_bytes)} ({share})" if facts.recommended_bytes else share
    return f"allocations on mps fail above {at}{given_back}{own}"


def _finding(number: int, finding: Finding, width: int) -> list[str]:
    lines = _wrapped(f"{number}. {finding.severity}: ", finding.what + ".", width, indent=3)
    for detail in finding.details:
        lines += _wrapped("   - ", detail, width)
    on_top = number == 1 and finding.severity != NOTE
    return lines + _wrapped("   -> ", "see the first line" if on_top else finding.remedy, width)


def _wrapped(label: str, text: str, width: int, indent: int | None = None) -> list[str]:
    """Returns `text` in lines. A command that fits on one line stays whole, so that it can be copied."""
    indent = len(label) if indent is None else indent

    def glue(command: re.Match[str]) -> str:
        room = width - (len(label) if command.start() == 0 else indent)
        return command[0].replace(" ", _GLUE) if len(command[0]) < room else command[0]

    lines = textwrap.wrap(
        _COMMAND.sub(glue, as_line(text, longest=500)),
        width,
        initial_indent=label,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]
