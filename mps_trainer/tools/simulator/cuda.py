"""Hides CUDA from a process, so that PyTorch's build for CUDA can use the simulated mps device.

That build is what PyPI has for Linux. As soon as it is imported, its accelerator is CUDA, with a GPU or without. A
small library that is loaded before says that there is no CUDA in it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

from .build import SimulatorUnavailableError, built, torch_folder, torch_version

SOURCES = Path(__file__).parent / "no_cuda"
MODULE = "mps_no_cuda"
_GPUS = ("/dev/nvidiactl", "/dev/dxg")  # the second is that of the Windows Subsystem for Linux

_library: ctypes.CDLL | None = None  # stays loaded
_failed: SimulatorUnavailableError | None = None


def hide_cuda() -> None:
    """Hides CUDA from this process if torch is built for it. Call it before torch loads its libraries.

    Raises:
        SimulatorUnavailableError: if torch has been imported, or the library cannot be built or loaded.
    """
    global _library
    if _failed is not None:
        raise _failed
    if _library is not None or not _has_cuda():
        return  # there is no CUDA to hide
    if "torch._C" in sys.modules:
        raise SimulatorUnavailableError(
            f"This is torch {torch_version().__version__}, a build for CUDA, and it was imported before the simulated "
            "mps device could take CUDA out of the process. Import mps_trainer.simulator before torch and, on a "
            "machine with an NVIDIA GPU, call mps_trainer.simulator.hide_cuda() there, or run the script with "
            "`mps-trainer simulate`."
        )
    path = built(SOURCES, MODULE)
    try:
        libraries = torch_folder() / "lib"
        ctypes.CDLL(str(libraries / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)  # torch begins with it
        ctypes.CDLL(str(libraries / "libtorch.so"))  # has torch's own hooks, which hooks of higher priority replace
        _library = ctypes.CDLL(str(path))
    except OSError as error:
        raise SimulatorUnavailableError(
            f"The simulated mps device cannot hide CUDA from this process: {error}. Delete {path.parent} to build "
            "the library again."
        ) from error
    if any(map(os.path.exists, _GPUS)):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hides the GPU from the driver's callers and from child processes


def build_no_cuda() -> None:
    """Compiles the library that hides CUDA, where torch is built for CUDA and it has not been compiled."""
    if _has_cuda():
        built(SOURCES, MODULE)


def _has_cuda() -> bool:
    return platform.system() == "Linux" and bool(torch_version().cuda)


def hide_unused_cuda() -> None:
    """Hides CUDA on a machine without an NVIDIA GPU before torch is imported; `hide_cuda` raises its errors."""
    global _failed
    if "torch._C" in sys.modules or platform.system() != "Linux" or any(map(os.path.exists, _GPUS)):
        return
    try:
        hide_cuda()
    except SimulatorUnavailableError as error:
        _failed = error
