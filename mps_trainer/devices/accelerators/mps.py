"""The GPU of an Apple-silicon Mac, which torch calls mps (Metal Performance Shaders)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..facts import MachineFacts, parse_version
from ..watermarks import HIGH, LOW
from .base import Accelerator, Devices, Obstacle, torch_missing

if TYPE_CHECKING:
    import torch

# The first macOS on which each torch release runs MPS, newest first: docs.pytorch.org/docs/2.15/notes/mps.html ("not
# 15.0+"), pytorch pull requests 162921 ("in 2.9+ MPS is only supported on macOS Sonoma+") and 133141 (in 2.5), and
# Apple's page on torch 1.12 (developer.apple.com/metal/pytorch).
MINIMUM_MACOS = (((2, 15), (15, 0)), ((2, 9), (14, 0)), ((2, 5), (13, 0)), ((1, 12), (12, 3)))

# bitsandbytes' Metal kernels on the hub are built for these releases of torch (from, and before) and for this macOS or
# later. It gets them through the package `kernels`, and without them it computes with torch's operators.
BITSANDBYTES_KERNELS_TORCH = (2, 10), (2, 13)
BITSANDBYTES_KERNELS_MACOS = (26,)

# `lightning.Trainer`, `lightning.Fabric` and the older package's Trainer have their classes for mps here.
_LIGHTNINGS = (
    "lightning.pytorch.accelerators.mps",
    "lightning.fabric.accelerators.mps",
    "pytorch_lightning.accelerators.mps",
    "lightning_fabric.accelerators.mps",
)

NATIVE_PYTHON = (
    "install a native arm64 Python, for example Miniforge's MacOSX-arm64 installer or Homebrew under /opt/homebrew, "
    "make a new environment with it and install torch there; "
    "`python -c 'import platform; print(platform.machine())'` then prints arm64"
)

NATIVE_CONDA = (
    "make a native environment: CONDA_SUBDIR=osx-arm64 conda create -n native python=3.11, then in it "
    "conda config --env --set subdir osx-arm64, and install torch and this package there"
)


def no_bitsandbytes_kernels(
    os_version: str | None, torch_version: str | None, has_kernels: bool
) -> tuple[str, str] | None:
    """Returns why bitsandbytes has no Metal kernels on a Mac, as a clause, and how to get them; None if it has them.

    Args:
        has_kernels: True if the package `kernels` is installed.
    """
    first, end = BITSANDBYTES_KERNELS_TORCH
    if parse_version(os_version) < BITSANDBYTES_KERNELS_MACOS:
        why = f"they need macOS {dotted(BITSANDBYTES_KERNELS_MACOS)}"
    elif not first <= parse_version(torch_version) < end:
        why = f"they exist for torch {dotted(first)} to {end[0]}.{end[1] - 1}"
    elif not has_kernels:
        return "they come with the package kernels, which is not installed", "python -m pip install kernels"
    else:
        return None
    return why, "for models in MLX's format use load_mlx_model, which does not need bitsandbytes"


class MPSAccelerator(Accelerator):
    """There is one such device in a machine. The one backend of torch.distributed that reaches it is ours, over MLX.

    An object of it, made after lightning was imported, can be handed over:
    `lightning.Trainer(accelerator=MPSAccelerator())`.
    """

    kind = "mps"
    label = "mps device"
    backends = ("mlx",)
    formats = ("fp32", "fp16", "bf16")  # Metal has no double
    indexed = False

    def __init__(self) -> None:
        # Lightning's Trainer takes objects of its abstract class Accelerator only, and trains on the CPU with those
        # that are not of its MPSAccelerator (`_choose_strategy`, 2.6). Another class may be registered as one.
        for name in _LIGHTNINGS:
            theirs = getattr(sys.modules.get(name), "MPSAccelerator", None)
            if theirs is not None:
                theirs.register(type(self))

    @classmethod
    def why_not(cls, facts: MachineFacts) -> Obstacle | None:
        # torch 2.15 allocates on macOS 14, for which it has neither a check nor workarounds any more
        too_old = _macos_too_old(facts)
        if facts.mps_allocation_ok and too_old is None:
            return None  # it works, whatever the table below would say
        if facts.mps_available and "float64" in (facts.mps_allocation_error or ""):
            return Obstacle(
                "torch's default number format is float64, which mps does not have",
                "call torch.set_default_dtype(torch.float32)",
            )
        if facts.system != "Darwin":
            return Obstacle(
                f"this machine runs {facts.system}, and mps is the GPU of an Apple-silicon Mac",
                "train on an Apple-silicon Mac (M1 or later)",
            )
        if facts.rosetta:
            return _emulated(facts)
        if facts.machine != "arm64":
            return Obstacle(
                f"this is an Intel Mac ({facts.machine}), for which torch has had no builds since 2.2",
                "train on an Apple-silicon Mac (M1 or later)",
                name="intel-mac",
            )
        if facts.torch_version is None:
            return torch_missing(facts)
        if not facts.mps_built:
            return Obstacle(
                f"torch {facts.torch_version} was built without MPS",
                "install the arm64 build from PyPI, which has it: python -m pip install --force-reinstall torch",
                True,
                "torch-without-mps",
            )
        return too_old or _no_device(facts)

    @classmethod
    def precisions(cls, facts: MachineFacts) -> tuple[str, ...]:
        has_bfloat16 = facts.system != "Darwin" or parse_version(facts.os_version) >= (14, 0)
        return tuple(each for each in super().precisions(facts) if each != "bf16" or has_bfloat16)

    @classmethod
    def scales_gradients(cls, torch_version: str) -> bool:
        # before 2.8 it asked for float64, and its kernels were missing (pytorch pull request 150255)
        return parse_version(torch_version) >= (2, 8)

    @classmethod
    def divides_gradients(cls, torch_version: str) -> bool:
        return parse_version(torch_version) >= (2, 13)  # before, it ignored both (pytorch pull request 186360)

    @classmethod
    def parse_devices(cls, devices: Devices) -> list[int]:
        """Returns [0], without a look at the machine. Raises MisconfigurationException for anything else."""
        return list(cls.choose_devices(devices, 1))

    @classmethod
    def get_parallel_devices(cls, devices: Devices) -> list[torch.device]:
        """Returns [torch.device("mps", 0)]. Raises MisconfigurationException for anything but the one device."""
        return super().get_parallel_devices(cls.parse_devices(devices))

    @classmethod
    def memory(cls, device: Any) -> dict[str, int]:
        """Returns the bytes of live tensors, those that Metal holds for this process, and its recommended maximum."""
        import torch

        return {
            "mps_allocated_bytes": torch.mps.current_allocated_memory(),
            "mps_driver_allocated_bytes": torch.mps.driver_allocated_memory(),
            "mps_recommended_max_bytes": torch.mps.recommended_max_memory(),
        }

    @classmethod
    def torch_module(cls) -> Any:
        import torch

        return torch.mps if torch.backends.mps.is_available() else None  # torch.mps cannot tell in old releases


def minimum_macos(torch_version: str | None) -> tuple[int, ...]:
    """Returns the first macOS on which this torch release runs MPS, as (major, minor)."""
    version = parse_version(torch_version)
    return next((macos for torch_from, macos in MINIMUM_MACOS if version >= torch_from), MINIMUM_MACOS[-1][1])


def too_new_torch(macos: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the first torch release that does not run MPS on this macOS; None if all known ones do."""
    return next((torch_from for torch_from, minimum in reversed(MINIMUM_MACOS) if minimum > macos), None)


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _emulated(facts: MachineFacts) -> Obstacle:
    which = f" ({facts.python_executable})" if facts.python_executable else ""
    failure = f"; an allocation failed with: {facts.mps_allocation_error}" if facts.mps_allocation_error else ""
    return Obstacle(
        f"this Python{which} is an x86_64 build that Rosetta emulates on an Apple-silicon Mac{failure}",
        NATIVE_CONDA if facts.conda else NATIVE_PYTHON,
        True,
        "rosetta",
    )


def _macos_too_old(facts: MachineFacts) -> Obstacle | None:
    macos, minimum = parse_version(facts.os_version), minimum_macos(facts.torch_version)
    if facts.system != "Darwin" or facts.torch_version is None or not macos or macos >= minimum:
        return None
    remedy = f"update macOS to {minimum[0]} or later"
    too_new = too_new_torch(macos)
    if too_new and macos >= (13, 0):  # before, the last one is older than any that this package takes
        last = f"python -m pip install 'torch<{dotted(too_new)}'"
        remedy += f", or install the last torch that runs MPS on macOS {macos[0]}: {last}"
    return Obstacle(
        f"macOS {facts.os_version} is too old: torch {facts.torch_version} runs MPS from macOS {dotted(minimum)} on",
        remedy,
        True,
        "old-macos",
    )


def _no_device(facts: MachineFacts) -> Obstacle:
    """Returns the obstacle for a torch that has MPS and reports no device, or one on which an allocation failed."""
    error = facts.mps_allocation_error or "no error was recorded"
    failed = f"torch reports MPS, but an allocation on it failed ({error})"
    if facts.mps_available and "watermark ratio" in error:
        given = [name for name in (HIGH, LOW) if name in facts.environment]
        return Obstacle(
            f"torch refuses the limits of memory that are in the environment ({error})",
            f"unset {' '.join(given)}; memory_fraction=0.8 limits a run by itself",
            True,
            "refused-limits",
        )
    if facts.virtual_machine:
        cause = f"this is a virtual Mac{f': {failed}' if facts.mps_available else ' without a Metal device'}"
        return Obstacle(
            cause,
            "train on a real Apple-silicon Mac; some virtual ones, such as GitHub's macos-15 runners, run small "
            "models on mps",
            name="virtual-mac",
        )
    if not facts.mps_available:
        # torch's own message blames macOS 15.0+, which is not the cause: a sandboxed process gets no Metal device
        return Obstacle(
            f"torch {facts.torch_version} has MPS, and macOS {facts.os_version} gives this process no Metal device",
            "run outside any sandbox, in a terminal of a logged-in user, and install the latest macOS update",
            True,
            "no-metal",
        )
    return Obstacle(
        failed,
        "free some of this Mac's memory: close other programs, and unset PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        True,
        "failed-allocation",
    )
