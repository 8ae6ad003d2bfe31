"""Findings about the setup of a machine: environment variables, memory, disk."""

from __future__ import annotations

from ..utils.amounts import format_bytes
from ..utils.documentation import page
from . import probes
from .facts import LAUNCHER_INTEGERS, MachineFacts
from .finding_type import ERROR, NOTE, WARNING, Finding
from .probes import FALLBACK, switched_on
from .watermarks import HIGH, LOW, MOST, Ratio, limits

_GIB = 1024**3
# The smallest Macs have 8, and macOS takes about 3 of them.
LITTLE_MEMORY = 8 * _GIB
# Each checkpoint of a model of 100 million parameters takes 1.2 GB: the weights, and AdamW's two numbers for each.
LITTLE_DISK = 5 * _GIB
# To unset; torchrun's count of restarts means nothing without them.
LAUNCHER = (*(name for name in LAUNCHER_INTEGERS if not name.startswith("TORCHELASTIC")), "MASTER_ADDR")


# --- the switch for operators without a kernel -------------------------------------------------------------------


def switch_unreadable(facts: MachineFacts) -> bool:
    """Returns True if a Mac's torch fails to load because of the switch."""
    return facts.system == "Darwin" and probes.unreadable_switch(facts.environment.get(FALLBACK))


def unreadable_switch(facts: MachineFacts) -> Finding | None:
    if not switch_unreadable(facts):
        return None
    return Finding(
        "unreadable-switch",
        ERROR,
        f"{FALLBACK}={facts.environment[FALLBACK]!r} is not a whole number, and with it torch fails to load on a Mac",
        f"unset {FALLBACK}, or set it to 1",
        device="mps",
    )


def late_switch(facts: MachineFacts) -> Finding | None:
    if not facts.fallback_set_too_late or not facts.mps_allocation_ok:
        return None
    return Finding(
        "late-switch",
        WARNING,
        f"{FALLBACK} was set after torch was imported and has no effect, because torch reads it once, when loaded",
        "set it in the shell, or at the top of the script before the first import of torch",
    )


def switch_on(facts: MachineFacts) -> Finding | None:
    on = switched_on(facts.environment.get(FALLBACK)) and not switch_unreadable(facts)
    if not on or facts.fallback_set_too_late or not facts.mps_allocation_ok:
        return None
    return Finding(
        "switch-on",
        NOTE,
        f"{FALLBACK} is on: an operator without a kernel for mps runs slowly on the CPU, with copies in both "
        "directions",
        "find these operators with mps-trainer check SCRIPT; if there are none, unset the variable",
    )


# --- the limits of memory on mps ---------------------------------------------------------------------------------


def refused_limits(facts: MachineFacts) -> Finding | None:
    """Returns a finding for a limit out of range, or a low one above the high one: torch refuses every allocation."""
    if facts.system != "Darwin" or facts.mps_allocation_ok or not _limits_in(facts):
        return None
    high = Ratio(facts.environment.get(HIGH, "1.7")).value  # torch's own, in force when its allocator is made
    low = limits(facts.environment)[1]
    highest = high if 0 < high <= MOST else MOST
    if HIGH in facts.environment and not 0 <= high <= MOST:
        what = f"{HIGH}={facts.environment[HIGH]} is not between 0 and {MOST:g}"
    elif LOW in facts.environment and not 0 <= low <= highest:
        top = f"{HIGH}={facts.environment[HIGH]}" if HIGH in facts.environment and high > 0 else f"{highest:g}"
        what = f"{LOW}={facts.environment[LOW]} is not between 0 and {top}"
    else:
        return None
    return Finding(
        "refused-limits",
        ERROR,
        f"{what}, so torch refuses every allocation on mps",
        f"unset {' '.join(_limits_in(facts))}; memory_fraction=0.8 limits a run by itself",
        device="mps",
    )


def no_limit(facts: MachineFacts) -> Finding | None:
    """Returns a finding for a high watermark of 0, as it is or because torch finds no number."""
    if HIGH not in facts.environment or not facts.mps_allocation_ok:
        return None
    high = Ratio(facts.environment[HIGH])
    if high.value != 0:
        return None
    read = "" if high.is_number else ", which is not a number and which torch reads as 0,"
    return Finding(
        "no-limit",
        WARNING,
        f"{HIGH}={high.text}{read} removes the memory limit on mps: a run that needs more memory swaps and can "
        "freeze the Mac",
        f"unset {HIGH}; a run then stops at the limit that Metal recommends (memory_fraction=1.0), and "
        "auto_find_batch_size=True makes its batches fit",
    )


def unclear_limits(facts: MachineFacts) -> Finding | None:
    """Returns a finding for limits that torch reads in part, or a low one that it reads as 0."""
    wrong = [f"{name}={facts.environment[name]}" for name in _limits_in(facts) if _misread(facts, name)]
    if not wrong or not facts.mps_allocation_ok:
        return None
    read = ", ".join(f"{Ratio(text.partition('=')[2]).value:g}" for text in wrong)
    return Finding(
        "unclear-limits",
        WARNING,
        f"{' and '.join(wrong)}: torch reads {read}",
        "give a number such as 0.8, or unset it",
    )


def limits_beyond(facts: MachineFacts) -> Finding | None:
    if HIGH not in facts.environment or not facts.mps_allocation_ok or not 1 < limits(facts.environment)[0] <= MOST:
        return None
    return Finding(
        "limits-beyond",
        NOTE,
        f"{HIGH}={facts.environment[HIGH]} lets a run hold more than Metal recommends, and the Mac may swap",
        f"unset {HIGH} if training is slow",
    )


def _limits_in(facts: MachineFacts) -> list[str]:
    return [name for name in (HIGH, LOW) if name in facts.environment]


def _misread(facts: MachineFacts, name: str) -> bool:
    ratio = Ratio(facts.environment[name])
    return not ratio.is_number and not (name == HIGH and ratio.value == 0)  # that is no_limit's


# --- what a launcher left, memory, disk --------------------------------------------------------------------------


def several_processes(facts: MachineFacts) -> Finding | None:
    if (facts.world_size or 1) == 1 or not facts.mps_allocation_ok:
        return None
    return Finding(
        "several-processes",
        ERROR,
        f"WORLD_SIZE is {facts.world_size} in the environment, as torchrun sets it, and mps trains in one process",
        f"start the script with python, without a launcher; if none was used: unset {' '.join(LAUNCHER)}",
    )


def one_process_of_torchrun(facts: MachineFacts) -> Finding | None:
    if facts.world_size != 1 and (facts.world_size is not None or facts.rank is None):
        return None
    return Finding(
        "one-process",
        NOTE,
        "variables of torchrun are in the environment, for one process",
        f"this is harmless; if no launcher was used: unset {' '.join(LAUNCHER)}",
    )


def fast_math(facts: MachineFacts) -> Finding | None:
    if not switched_on(facts.environment.get("PYTORCH_MPS_FAST_MATH")) or not facts.mps_allocation_ok:
        return None
    return Finding(
        "fast-math",
        NOTE,
        "PYTORCH_MPS_FAST_MATH is on: Metal may assume that all numbers are finite, so a nan loss may go unnoticed",
        "unset it if results look wrong",
    )


def little_memory(facts: MachineFacts) -> Finding | None:
    if facts.memory_bytes is None or facts.memory_bytes > LITTLE_MEMORY:
        return None
    shared = ", which the GPU shares with macOS and every program" if facts.mps_allocation_ok else ""
    return Finding(
        "little-memory",
        WARNING,
        f"this machine has {format_bytes(facts.memory_bytes)} of memory{shared}",
        "set auto_find_batch_size=True, which halves batches that do not fit, and close other programs; "
        f"{page('memory')} has more",
    )


def little_disk(facts: MachineFacts) -> Finding | None:
    if facts.cache_free_bytes is None or facts.cache_free_bytes >= LITTLE_DISK:
        return None
    return Finding(
        "little-disk",
        WARNING,
        f"{format_bytes(facts.cache_free_bytes)} are free on the disk of {facts.cache_folder}, which holds models, "
        "checkpoints and swap",
        "free some disk space, or point HF_HOME, MPS_TRAINER_CACHE and --output_dir to another disk",
    )
