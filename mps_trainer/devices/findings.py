"""Judges the facts of a machine: each finding has its remedy, the most helpful first.

Pure, as deciding is: the facts of any machine can be judged on any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..errors import MisconfigurationException
from ..utils.documentation import page
from ..utils.text import format_bytes
from .accelerators import ACCELERATORS, MPSAccelerator
from .accelerators.base import torch_missing
from .accelerators.mps import MINIMUM_MACOS, dotted, minimum_macos, no_bitsandbytes_kernels, too_new_torch
from .facts import TORCH_DEVICE, MachineFacts, parse_version
from .known_faults import SILENT, faults_to_warn_of
from .launchers import LAUNCHER_INTEGERS
from .probes import FALLBACK, switched_on
from .resolver import Decision, DeviceRequest, is_true, resolve
from .watermarks import HIGH, LOW, MOST, Ratio

ERROR = "error"  # keeps training from the best device of the machine, or from running at all
WARNING = "warning"  # training runs, and may go wrong or be cut short
NOTE = "note"  # nothing is wrong, and it is good to know
SEVERITIES = (ERROR, WARNING, NOTE)

# The oldest releases that setup.cfg takes.
MINIMUM_TORCH = (2, 6)
MINIMUM_TRANSFORMERS = (5, 4)

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

    Within one severity they keep the order of `CHECKS`, by the gain of the remedy. () when all is well.
    """
    found = [finding for check in CHECKS for finding in check(facts)]
    if not any(finding.severity == ERROR for finding in found):
        decision, refusal = decide(facts)
        if decision is None:
            what, _, remedy = refusal.rstrip(".").rpartition(". ")
            found.append(Finding("refused", ERROR, what, remedy))
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


# --- torch, transformers and the GPU of a Mac --------------------------------------------------------------------


def _torch(facts: MachineFacts) -> Iterator[Finding]:
    if facts.system != "Darwin" and facts.torch_version is None:
        obstacle = torch_missing(facts)
        yield Finding("torch", ERROR, obstacle.why, obstacle.remedy)
    if facts.system == "Darwin":
        yield from _mac_gpu(facts)
    version = parse_version(facts.torch_version)
    x86_mac = facts.system == "Darwin" and facts.machine != "arm64"  # has no newer one
    if () < version < MINIMUM_TORCH and not x86_mac:
        what = f"torch {facts.torch_version} is older than {dotted(MINIMUM_TORCH)}, the oldest that this package takes"
        yield Finding("old-torch", ERROR, what, _newer_torch(facts))


def _mac_gpu(facts: MachineFacts) -> Iterator[Finding]:
    obstacle = MPSAccelerator.why_not(facts)
    severity = ERROR if obstacle and obstacle.repairable else WARNING
    if facts.rosetta and facts.mps_allocation_ok:
        obstacle, severity = MPSAccelerator.why_not(replace(facts, mps_allocation_ok=False)), WARNING
    elif facts.torch_version is None:
        severity = ERROR  # on an Intel Mac there is no torch to install that would do
    if obstacle is not None:
        intel = f", and this package needs {dotted(MINIMUM_TORCH)}" if obstacle.name == "intel-mac" else ""
        yield Finding(obstacle.name, severity, obstacle.why + intel, obstacle.remedy, device="mps")


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


def _transformers(facts: MachineFacts) -> Iterator[Finding]:
    version, oldest = facts.packages.get("transformers"), dotted(MINIMUM_TRANSFORMERS)
    if version is None:
        what = "transformers is not installed in this Python"
    else:
        what = f"transformers {version} is older than {oldest}, the oldest that this package takes"
    # without packages, they were not looked up
    if facts.packages and (version is None or () < parse_version(version) < MINIMUM_TRANSFORMERS):
        remedy = f"python -m pip install -U 'transformers>={oldest},<{MINIMUM_TRANSFORMERS[0] + 1}'"
        yield Finding("transformers", ERROR, what, f"install transformers: {remedy}")


def _wrong_results(facts: MachineFacts) -> Iterator[Finding]:
    """Yields the known faults of this torch on this Mac, and the smallest update that ends all it can."""
    if trains_on(facts) != "mps" or facts.system != "Darwin" or facts.mps_simulated:
        return
    faults = faults_to_warn_of(facts.torch_version, facts.os_version, facts.chip)
    if not faults:
        return
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
    silent = ", and says nothing when a command fails on the GPU" if any(f.issue == SILENT for f in faults) else ""
    yield Finding(
        "wrong-results",
        WARNING if remedies else NOTE,  # no update helps, so it does not come first
        f"torch {facts.torch_version} on {where} is known to compute wrong results{silent}",
        "; ".join([*remedies, f"{page('faults')} has a workaround for {each}"]) if remedies else no_update,
        details=tuple(f"{fault.what} ({fault.thread})" for fault in faults),
    )


def _quantization(facts: MachineFacts) -> Iterator[Finding]:
    if trains_on(facts) != "mps" or facts.mps_simulated or "bitsandbytes" not in facts.packages:
        return
    missing = no_bitsandbytes_kernels(facts.os_version, facts.torch_version, "kernels" in facts.packages)
    if missing is not None:
        why, remedy = missing
        what = f"bitsandbytes runs without its Metal kernels, so weights in 4 bits are slow: {why}"
        yield Finding("slow-quantization", NOTE, what, f"{remedy}; {page('peft')} compares the two")


# --- other GPUs, processes ---------------------------------------------------------------------------------------


def _gpus(facts: MachineFacts) -> Iterator[Finding]:
    """Yields findings for GPUs that are there, or a build for them, and that torch cannot use or is kept from."""
    for kind, accelerator in ACCELERATORS.items():
        obstacle = accelerator.why_not(facts)
        if obstacle is not None and obstacle.name == kind:  # only GPUs other than a Mac's have these names
            severity = ERROR if obstacle.repairable else WARNING
            yield Finding(kind, severity, obstacle.why, obstacle.remedy, device=kind)
    idle = next((kind for kind, each in ACCELERATORS.items() if each.why_not(facts) is None), "cpu")
    for name in ("ACCELERATE_USE_CPU", TORCH_DEVICE):
        value = facts.environment.get(name, "")
        if (is_true(value) or value.strip().lower() == "cpu") and idle != "cpu":
            what = f"{name}={value} is in the environment, so training leaves {idle} idle, although it works here"
            yield Finding("asked-for-cpu", ERROR, what, f"unset {name}", device=idle)
    # Docker Desktop's kernel is named linuxkit
    if "linuxkit" in facts.os_version and facts.machine in ("aarch64", "arm64"):
        yield Finding(
            "container-on-a-mac",
            WARNING,
            "this is a Linux container of Docker Desktop; if the machine is a Mac, its GPU cannot be reached from "
            "here",
            "train outside the container, with a Python for macOS",
            device="mps",
        )


def _processes(facts: MachineFacts) -> Iterator[Finding]:
    unset = f"unset {' '.join(LAUNCHER)}"
    if (facts.world_size or 1) > 1 and facts.mps_allocation_ok and not facts.mlx:
        yield Finding(
            "several-processes",
            ERROR,
            f"WORLD_SIZE is {facts.world_size} in the environment, as torchrun sets it, and several processes on mps "
            "exchange gradients over MLX, which is not installed",
            "python -m pip install 'mps_trainer[several-macs]', or start the script with python, without a launcher; "
            f"if none was used: {unset}",
        )
    if facts.world_size == 1 or (facts.world_size is None and facts.rank is not None):
        what = "variables of torchrun are in the environment, for one process"
        yield Finding("one-process", NOTE, what, f"this is harmless; if no launcher was used: {unset}")
    if facts.system == "Darwin" and facts.mps_allocation_ok and facts.mlx:
        # without MLX there is no note: most people have one Mac, and launching on several names the extra
        state, remedy = "but it cannot be loaded, or has no backend", "python -m pip install -U mlx"
        if facts.mlx_backends:
            state, remedy = f"with its backends {facts.mlx_backends}", f"see {page('several-macs')}"
        what = f"MLX is installed, over which several Macs train together, {state}"
        yield Finding("several-macs", NOTE, what, remedy)
    accelerator = ACCELERATORS[trains_on(facts) or "cpu"]
    if (count := accelerator.count(facts)) > 1:
        what = f"{count} GPUs are here, and one process trains on one of them"
        remedy = (
            f"torchrun --nproc_per_node {count} SCRIPT trains on all of them; {accelerator.visible_variable}=1 "
            "chooses the second"
        )
        yield Finding("idle-gpus", NOTE, what, remedy)


# --- environment variables on a machine with mps, memory, disk ---------------------------------------------------


def _limits(facts: MachineFacts) -> Iterator[Finding]:
    ratios = {name: Ratio(facts.environment[name]) for name in (HIGH, LOW) if name in facts.environment}
    if not facts.mps_allocation_ok or not ratios:
        return
    high = ratios.get(HIGH)
    if high is not None and high.value == 0:
        read = "" if high.is_number else ", which is not a number and which torch reads as 0,"
        yield Finding(
            "no-limit",
            WARNING,
            f"{HIGH}={high.text}{read} removes the memory limit on mps: a run that needs more memory swaps and can "
            "freeze the Mac",
            f"unset {HIGH}; a run then stops at the limit that Metal recommends (memory_fraction=1.0), and "
            "auto_find_batch_size=True makes its batches fit",
        )
        del ratios[HIGH]
    if high is not None and 1 < high.value <= MOST:
        what = f"{HIGH}={high.text} lets a run hold more than Metal recommends, and the Mac may swap"
        yield Finding("limits-beyond", NOTE, what, f"unset {HIGH} if training is slow")
    if wrong := {name: ratio for name, ratio in ratios.items() if not ratio.is_number}:
        given = " and ".join(f"{name}={ratio.text}" for name, ratio in wrong.items())
        read = ", ".join(f"{ratio.value:g}" for ratio in wrong.values())
        yield Finding(
            "unclear-limits", WARNING, f"{given}: torch reads {read}", "give a number such as 0.8, or unset it"
        )


def _switches(facts: MachineFacts) -> Iterator[Finding]:
    if facts.mps_simulated:
        yield Finding(
            "simulated",
            NOTE,
            "this mps device is simulated on the CPU; its speed says nothing about a Mac",
            "run without mps_trainer.simulator to judge the real machine",
        )
    if not facts.mps_allocation_ok:
        return
    if facts.fallback_set_too_late:
        yield Finding(
            "late-switch",
            WARNING,
            f"{FALLBACK} was set after torch was imported and has no effect, because torch reads it once, when loaded",
            "set it in the shell, or at the top of the script before the first import of torch",
        )
    elif switched_on(facts.environment.get(FALLBACK)):
        yield Finding(
            "switch-on",
            NOTE,
            f"{FALLBACK} is on: an operator without a kernel for mps runs slowly on the CPU, with copies in both "
            "directions",
            "find these operators with mps-trainer check SCRIPT; if there are none, unset the variable",
        )
    if switched_on(facts.environment.get("PYTORCH_MPS_FAST_MATH")):
        yield Finding(
            "fast-math",
            NOTE,
            "PYTORCH_MPS_FAST_MATH is on: Metal may assume that all numbers are finite, so a nan loss may go "
            "unnoticed",
            "unset it if results look wrong",
        )


def _room(facts: MachineFacts) -> Iterator[Finding]:
    if facts.memory_bytes is not None and facts.memory_bytes <= LITTLE_MEMORY:
        shared = ", which the GPU shares with macOS and every program" if facts.mps_allocation_ok else ""
        yield Finding(
            "little-memory",
            WARNING,
            f"this machine has {format_bytes(facts.memory_bytes)} of memory{shared}",
            "set auto_find_batch_size=True, which halves batches that do not fit, and close other programs; "
            f"{page('memory')} has more",
        )
    if facts.cache_free_bytes is not None and facts.cache_free_bytes < LITTLE_DISK:
        yield Finding(
            "little-disk",
            WARNING,
            f"{format_bytes(facts.cache_free_bytes)} are free on the disk of {facts.cache_folder}, which holds "
            "models, checkpoints and swap",
            "free some disk space, or point HF_HOME, MPS_TRAINER_CACHE and --output_dir to another disk",
        )


CHECKS: tuple[Callable[[MachineFacts], Iterator[Finding]], ...] = (
    _torch,
    _transformers,
    _gpus,
    _wrong_results,
    _quantization,
    _limits,
    _switches,
    _room,
    _processes,
)
