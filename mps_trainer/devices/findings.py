"""Judges the facts of a machine: each finding has its remedy, the most helpful first.

Pure, as deciding is: the facts of any machine can be judged on any other. This file has the findings about what a
machine can train on, `settings.py` those about how it is set up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import MisconfigurationException
from ..utils.documentation import page
from . import settings
from .accelerators import CUDAAccelerator, MPSAccelerator, XPUAccelerator
from .accelerators.base import Obstacle, torch_missing
from .accelerators.mps import MINIMUM_MACOS, dotted, minimum_macos, too_new_torch
from .facts import MachineFacts, parse_version
from .finding_type import ERROR, NOTE, SEVERITIES, WARNING, Finding
from .known_faults import faults_to_warn_of
from .resolver import Decision, DeviceRequest, is_true, resolve

# The oldest releases that setup.cfg takes.
MINIMUM_TORCH = (2, 6)
MINIMUM_TRANSFORMERS = (5, 0)

NATIVE_CONDA = (
    "make a native environment: CONDA_SUBDIR=osx-arm64 conda create -n native python=3.11, then in it "
    "conda config --env --set subdir osx-arm64, and install torch and this package there"
)


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
    if settings.switch_unreadable(facts) and obstacle.name == "torch":
        return True
    return "watermark ratio" in (facts.mps_allocation_error or "") and settings.refused_limits(facts) is not None


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


def _cuda(facts: MachineFacts) -> Finding | None:
    """Returns a finding for GPUs that NVIDIA's driver lists or a variable hides, and torch cannot use."""
    if facts.system == "Darwin" or facts.torch_version is None or facts.cuda_count:
        return None
    obstacle = CUDAAccelerator.why_not(facts)
    assert obstacle is not None
    there = facts.nvidia_gpus or 0
    if facts.cuda_built and "CUDA_VISIBLE_DEVICES" in facts.environment:
        return Finding("cuda", ERROR if there else WARNING, obstacle.cause, obstacle.remedy, device="cuda")
    if not there:
        return None
    driver = f"NVIDIA's driver lists {there} GPU{'s' if there > 1 else ''}"
    if facts.cuda_built:
        remedy = "see that `nvidia-smi` lists them and that the driver is new enough; a container needs --gpus all"
        return Finding("cuda", ERROR, f"{driver}, and torch finds none", remedy, device="cuda")
    remedy = "install a build with CUDA, as PyPI's for Linux is: python -m pip install --force-reinstall torch"
    return Finding("cuda", ERROR, f"{driver}, and {obstacle.cause}", remedy, device="cuda")


def _xpu(facts: MachineFacts) -> Finding | None:
    """Returns a finding for an XPU build, which was chosen on purpose, that sees no GPU."""
    if facts.system == "Darwin" or facts.torch_version is None or not facts.xpu_built or facts.xpu_count:
        return None
    obstacle = XPUAccelerator.why_not(facts)
    assert obstacle is not None
    remedy = obstacle.remedy.replace("lists one", "lists an Intel GPU")
    return Finding("xpu", WARNING, obstacle.cause, remedy, device="xpu")


def _asked_for_cpu(facts: MachineFacts) -> Finding | None:
    value = facts.environment.get("ACCELERATE_USE_CPU")
    if not is_true(value):
        return None
    idle = next((a for a in (MPSAccelerator, CUDAAccelerator, XPUAccelerator) if a.why_not(facts) is None), None)
    if idle is None:
        return None
    return Finding(
        "asked-for-cpu",
        ERROR,
        f"ACCELERATE_USE_CPU={value} is in the environment, so training leaves {idle.name()} idle, although it "
        "works here",
        "unset ACCELERATE_USE_CPU",
        device=idle.name(),
    )


def _idle_gpus(facts: MachineFacts) -> Finding | None:
    device = trains_on(facts)
    count = {"cuda": facts.cuda_count, "xpu": facts.xpu_count}.get(device or "", 0)
    if count < 2:
        return None
    variable = "CUDA_VISIBLE_DEVICES" if device == "cuda" else "ZE_AFFINITY_MASK"
    what = f"{count} GPUs are here, and this release trains on one of them"
    return Finding("idle-gpus", NOTE, what, f"the others are free for other runs: {variable}=1 chooses the second")


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


CHECKS: tuple[Callable[[MachineFacts], Finding | None], ...] = (
    _torch,
    _mac_gpu,
    settings.unreadable_switch,
    settings.refused_limits,
    _old_torch,
    _transformers,
    _cuda,
    _asked_for_cpu,
    settings.several_processes,
    _container_on_a_mac,
    _wrong_results,
    settings.no_limit,
    settings.late_switch,
    _xpu,
    settings.little_memory,
    settings.little_disk,
    settings.unclear_limits,
    _simulated,
    settings.switch_on,
    settings.fast_math,
    settings.limits_beyond,
    settings.one_process_of_torchrun,
    _idle_gpus,
)
