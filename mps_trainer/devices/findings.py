"""Judges the facts of a machine: each finding has its remedy, the most helpful first.

Pure, as deciding is: the facts of any machine can be judged on any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..errors import MisconfigurationException
from ..utils.amounts import format_bytes
from ..utils.documentation import page
from .accelerators import ACCELERATORS, MPSAccelerator
from .accelerators.base import Obstacle, torch_missing
from .accelerators.gpu import GPUAccelerator
from .accelerators.mps import MINIMUM_MACOS, dotted, minimum_macos, too_new_torch
from .facts import LAUNCHER_INTEGERS, MachineFacts, parse_version
from .known_faults import faults_to_warn_of
from .probes import FALLBACK, switched_on, unreadable_switch
from .resolver import Decision, DeviceRequest, is_true, resolve
from .watermarks import HIGH, LOW, MOST, Ratio, limits

ERROR = "error"  # keeps training from the best device of the machine, or from running at all
WARNING = "warning"  # training runs, and may go wrong or be cut short
NOTE = "note"  # as it should be, and good to know
SEVERITIES = (ERROR, WARNING, NOTE)

# The oldest releases that setup.cfg takes.
MINIMUM_TORCH = (2, 6)
MINIMUM_TRANSFORMERS = (5, 0)

NATIVE_CONDA = (
    "make a native environment: CONDA_SUBDIR=osx-arm64 conda create -n native python=3.11, then in it "
    "conda config --env --set subdir osx-arm64, and install torch and this package there"
)

_GIB = 1024**3
# The smallest Macs have 8, and macOS takes about 3 of them.
LITTLE_MEMORY = 8 * _GIB
# Each checkpoint of a model of 100 million parameters takes 1.2 GB: the weights, and AdamW's two numbers for each.
LITTLE_DISK = 5 * _GIB
# To unset; torchrun's count of restarts means nothing without them.
LAUNCHER = (*(name for name in LAUNCHER_INTEGERS if not name.startswith("TORCHELASTIC")), "MASTER_ADDR")


@dataclass(frozen=True)
class Finding:
    """A finding about a machine with its remedy.

    `what` and `remedy` are clauses without a full stop.
    """

    name: str  # for programs; stays the same from release to release
    severity: str
    what: str
    remedy: str
    details: tuple[str, ...] = ()
    device: str | None = None  # the finding is why this one is not used

    def to_dict(self) -> dict[str, Any]:
        """Returns every field, in types that JSON has."""
        return {**dataclasses.asdict(self), "details": list(self.details)}


def findings(facts: MachineFacts) -> tuple[Finding, ...]:
    """Returns the findings about a machine: what keeps it from training on its best device first, notes last.

    Within one severity the order is that of `CHECKS`, by what the remedy gains. () when all is well.
    """
    found = [finding for check in CHECKS if (finding := check(facts)) is not None]
    has_error = any(finding.severity == ERROR for finding in found)
    if not has_error and (refused := _refused(facts)) is not None:
        found.append(refused)
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def decide(facts: MachineFacts) -> tuple[Decision | None, str]:
    """Returns the decision for "auto"; or None, and why nothing can be trained."""
    try:
        return resolve(DeviceRequest(), facts), ""
    except MisconfigurationException as error:
        return None, str(error)


def trains_on(facts: MachineFacts) -> str | None:
    """Returns the kind of device that "auto" gets; None if nothing can be trained."""
    decision, _ = decide(facts)
    return None if decision is None else decision.type


def _refused(facts: MachineFacts) -> Finding | None:
    decision, refusal = decide(facts)
    if decision is not None:
        return None
    what, _, remedy = refusal.rstrip(".").rpartition(". ")
    return Finding("refused", ERROR, what, remedy)


# --- the GPU of a Mac --------------------------------------------------------------------------------------------


def _mac_gpu(facts: MachineFacts) -> Finding | None:
    """Returns a finding if torch cannot use a Mac's GPU or is slow on it."""
    if facts.system != "Darwin":
        return None
    if facts.rosetta and facts.mps_allocation_ok:
        obstacle: Obstacle | None = MPSAccelerator.why_not(replace(facts, mps_allocation_ok=False))
        severity = WARNING
    else:
        obstacle = MPSAccelerator.why_not(facts)
        severity = ERROR if obstacle and obstacle.repairable else WARNING
    if obstacle is None or _is_of_settings(facts, obstacle):
        return None
    if facts.torch_version is None:
        # On an Intel Mac there is no torch to install that would do.
        severity = ERROR
    remedy = NATIVE_CONDA if facts.rosetta and facts.conda else _torch_remedy(facts, obstacle)
    what = obstacle.cause
    if not facts.rosetta and facts.machine != "arm64":
        what += f", and this package needs {dotted(MINIMUM_TORCH)}"
    return Finding(obstacle.name, severity, what, remedy, device="mps")


def _is_of_settings(facts: MachineFacts, obstacle: Obstacle) -> bool:
    """Returns True if the cause is an environment variable, which has a finding of its own."""
    if _switch_unreadable(facts) and obstacle.name == "torch":
        return True
    return "watermark ratio" in (facts.mps_allocation_error or "") and _refused_limits(facts) is not None


def _torch_remedy(facts: MachineFacts, obstacle: Obstacle) -> str:
    """Returns the obstacle's own remedy, or a better one where torch's error tells more."""
    error = facts.torch_error or ""
    if obstacle.name != "torch":
        return obstacle.remedy
    if "incompatible architecture" in error:
        return (
            f"reinstall torch for the architecture of this Python, {facts.machine}: "
            "python -m pip install --force-reinstall --no-cache-dir torch"
        )
    if error.startswith("AttributeError"):
        return (
            "see where it comes from: `python -c 'import torch; print(torch)'`; if a file or folder of yours named "
            "torch hides the real one, rename it"
        )
    return obstacle.remedy.replace("install it:", "install torch:")  # "reinstall" too


def _torch(facts: MachineFacts) -> Finding | None:
    """Returns a finding where torch is missing; `_mac_gpu` has a Mac's."""
    if facts.system == "Darwin" or facts.torch_version is not None:
        return None
    obstacle = torch_missing(facts)
    return Finding("torch", ERROR, obstacle.cause, _torch_remedy(facts, obstacle))


def _old_torch(facts: MachineFacts) -> Finding | None:
    version = parse_version(facts.torch_version)
    x86_mac = facts.system == "Darwin" and facts.machine != "arm64"  # has no newer one
    if not version or version >= MINIMUM_TORCH or x86_mac:
        return None
    return Finding(
        "old-torch",
        ERROR,
        f"torch {facts.torch_version} is older than {dotted(MINIMUM_TORCH)}, the oldest that this package takes",
        _newer_torch(facts),
    )


def _newer_torch(facts: MachineFacts, least: tuple[int, ...] = MINIMUM_TORCH) -> str:
    """Returns how to get torch `least` or a later one on this system."""
    if facts.rosetta:
        return f"in a native Python: python -m pip install -U 'torch>={dotted(least)}'"
    macos = parse_version(facts.os_version) if facts.system == "Darwin" else ()
    newest = MINIMUM_MACOS[0][1]
    if macos and macos < minimum_macos(dotted(least)):
        return f"update macOS to {newest[0]} or later, then python -m pip install -U 'torch>={dotted(least)}'"
    too_new = too_new_torch(macos) if macos else None
    last = f",<{dotted(too_new)}" if too_new else ""
    return f"install a newer torch: python -m pip install -U 'torch>={dotted(least)}{last}'"


def _transformers(facts: MachineFacts) -> Finding | None:
    if not facts.packages:  # not asked
        return None
    version = facts.packages.get("transformers")
    remedy = f"python -m pip install -U 'transformers>={dotted(MINIMUM_TRANSFORMERS)},<{MINIMUM_TRANSFORMERS[0] + 1}'"
    if version is None:
        return Finding(
            "transformers", ERROR, "transformers is not installed in this Python", f"install transformers: {remedy}"
        )
    if () < parse_version(version) < MINIMUM_TRANSFORMERS:
        oldest = dotted(MINIMUM_TRANSFORMERS)
        what = f"transformers {version} is older than {oldest}, the oldest that this package takes"
        return Finding("transformers", ERROR, what, f"install a newer transformers: {remedy}")
    return None


def _wrong_results(facts: MachineFacts) -> Finding | None:
    """Returns the known faults of this torch on this Mac, and the smallest update that ends all it can."""
    if trains_on(facts) != "mps" or facts.system != "Darwin" or facts.mps_simulated:
        return None
    faults = faults_to_warn_of(facts.torch_version, facts.os_version, facts.chip)
    if not faults:
        return None
    torch = max((fault.torch_before for fault in faults if fault.torch_before), default=None)
    macos = max(
        (fault.macos_before for fault in faults if fault.macos_before and not fault.torch_before), default=None
    )
    remedies = [] if torch is None else [_newer_torch(facts, torch)]
    remedies += [] if macos is None else [f"update macOS to {dotted(macos)} or later"]
    each = "each" if len(faults) > 1 else "it"
    no_update = f"see the workaround for {each} in {page('faults')}: no release of torch or macOS fixes {each} yet"
    where = f"macOS {facts.os_version}"
    if any(fault.chips for fault in faults):
        where = f"an {facts.chip} with {where}"
    return Finding(
        "wrong-results",
        WARNING,
        f"torch {facts.torch_version} on {where} is known to compute wrong results",
        "; ".join([*remedies, f"{page('faults')} has a workaround for {each}"]) if remedies else no_update,
        details=tuple(f"{fault.what} ({fault.thread})" for fault in faults),
    )


# --- other GPUs --------------------------------------------------------------------------------------------------


def _idle_gpu(facts: MachineFacts) -> Finding | None:
    """Returns a finding for a GPU beside mps that is there, or a build for it, and that torch cannot use."""
    for kind, accelerator in ACCELERATORS.items():
        obstacle = accelerator.why_not(facts)
        if issubclass(accelerator, GPUAccelerator) and obstacle is not None and obstacle.name == kind:
            severity = ERROR if obstacle.repairable else WARNING
            return Finding(kind, severity, obstacle.cause, obstacle.remedy, device=kind)
    return None


def _asked_for_cpu(facts: MachineFacts) -> Finding | None:
    value = facts.environment.get("ACCELERATE_USE_CPU")
    if not is_true(value):
        return None
    idle = next((kind for kind, each in ACCELERATORS.items() if each.why_not(facts) is None), "cpu")
    if idle == "cpu":
        return None
    return Finding(
        "asked-for-cpu",
        ERROR,
        f"ACCELERATE_USE_CPU={value} is in the environment, so training leaves {idle} idle, although it works here",
        "unset ACCELERATE_USE_CPU",
        device=idle,
    )


def _unused_gpus(facts: MachineFacts) -> Finding | None:
    accelerator = ACCELERATORS[trains_on(facts) or "cpu"]
    if (count := accelerator.count(facts)) < 2:
        return None
    what = f"{count} GPUs are here, and this release trains on one of them"
    remedy = f"the others are free for other runs: {accelerator.visible_variable}=1 chooses the second"
    return Finding("idle-gpus", NOTE, what, remedy)


def _container_on_a_mac(facts: MachineFacts) -> Finding | None:
    """Returns a finding for an arm64 container of Docker Desktop, whose kernel is named linuxkit."""
    if "linuxkit" not in facts.os_version or facts.machine not in ("aarch64", "arm64"):
        return None
    return Finding(
        "container-on-a-mac",
        WARNING,
        "this is a Linux container of Docker Desktop; if the machine is a Mac, its GPU cannot be reached from here",
        "train outside the container, with a Python for macOS",
        device="mps",
    )


def _simulated(facts: MachineFacts) -> Finding | None:
    if not facts.mps_simulated:
        return None
    return Finding(
        "simulated",
        NOTE,
        "this mps device is simulated on the CPU; its speed says nothing about a Mac",
        "run without mps_trainer.simulator to judge the real machine",
    )


# --- the switch for operators without a kernel -------------------------------------------------------------------


def _switch_unreadable(facts: MachineFacts) -> bool:
    """Returns True if a Mac's torch fails to load because of the switch."""
    return facts.system == "Darwin" and unreadable_switch(facts.environment.get(FALLBACK))


def _unreadable_switch_finding(facts: MachineFacts) -> Finding | None:
    if not _switch_unreadable(facts):
        return None
    return Finding(
        "unreadable-switch",
        ERROR,
        f"{FALLBACK}={facts.environment[FALLBACK]!r} is not a whole number, and with it torch fails to load on a Mac",
        f"unset {FALLBACK}, or set it to 1",
        device="mps",
    )


def _late_switch(facts: MachineFacts) -> Finding | None:
    if not facts.fallback_set_too_late or not facts.mps_allocation_ok:
        return None
    return Finding(
        "late-switch",
        WARNING,
        f"{FALLBACK} was set after torch was imported and has no effect, because torch reads it once, when loaded",
        "set it in the shell, or at the top of the script before the first import of torch",
    )


def _switch_on(facts: MachineFacts) -> Finding | None:
    on = switched_on(facts.environment.get(FALLBACK)) and not _switch_unreadable(facts)
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


def _refused_limits(facts: MachineFacts) -> Finding | None:
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


def _no_limit(facts: MachineFacts) -> Finding | None:
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


def _unclear_limits(facts: MachineFacts) -> Finding | None:
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


def _limits_beyond(facts: MachineFacts) -> Finding | None:
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


def _several_processes(facts: MachineFacts) -> Finding | None:
    if (facts.world_size or 1) == 1 or not facts.mps_allocation_ok:
        return None
    return Finding(
        "several-processes",
        ERROR,
        f"WORLD_SIZE is {facts.world_size} in the environment, as torchrun sets it, and mps trains in one process",
        f"start the script with python, without a launcher; if none was used: unset {' '.join(LAUNCHER)}",
    )


def _one_process_of_torchrun(facts: MachineFacts) -> Finding | None:
    if facts.world_size != 1 and (facts.world_size is not None or facts.rank is None):
        return None
    return Finding(
        "one-process",
        NOTE,
        "variables of torchrun are in the environment, for one process",
        f"this is harmless; if no launcher was used: unset {' '.join(LAUNCHER)}",
    )


def _fast_math(facts: MachineFacts) -> Finding | None:
    if not switched_on(facts.environment.get("PYTORCH_MPS_FAST_MATH")) or not facts.mps_allocation_ok:
        return None
    return Finding(
        "fast-math",
        NOTE,
        "PYTORCH_MPS_FAST_MATH is on: Metal may assume that all numbers are finite, so a nan loss may go unnoticed",
        "unset it if results look wrong",
    )


def _little_memory(facts: MachineFacts) -> Finding | None:
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


def _little_disk(facts: MachineFacts) -> Finding | None:
    if facts.cache_free_bytes is None or facts.cache_free_bytes >= LITTLE_DISK:
        return None
    return Finding(
        "little-disk",
        WARNING,
        f"{format_bytes(facts.cache_free_bytes)} are free on the disk of {facts.cache_folder}, which holds models, "
        "checkpoints and swap",
        "free some disk space, or point HF_HOME, MPS_TRAINER_CACHE and --output_dir to another disk",
    )


CHECKS: tuple[Callable[[MachineFacts], Finding | None], ...] = (
    _torch,
    _mac_gpu,
    _unreadable_switch_finding,
    _refused_limits,
    _old_torch,
    _transformers,
    _idle_gpu,
    _asked_for_cpu,
    _several_processes,
    _container_on_a_mac,
    _wrong_results,
    _no_limit,
    _late_switch,
    _little_memory,
    _little_disk,
    _unclear_limits,
    _simulated,
    _switch_on,
    _fast_math,
    _limits_beyond,
    _one_process_of_torchrun,
    _unused_gpus,
)
