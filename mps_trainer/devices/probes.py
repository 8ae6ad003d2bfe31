"""Probes this machine with tiny functions, which tests replace, and watches for the import of torch.

`facts.py` asks them. `mps_trainer/__init__` imports this file to see torch being loaded, so its top imports the
standard library alone.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
from platform import machine, release, system  # noqa: F401  # facts.py asks them
from typing import Any

FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"


def switched_on(value: str | None) -> bool:
    """Returns True if torch takes this value of its fallback switch for on: any number but 0."""
    return value is not None and value.strip() not in ("", "0")


def unreadable_switch(value: str | None) -> bool:
    """Returns True if torch, which reads its fallback switch by std::stoi, fails to load with this value."""
    return value is not None and re.match(r"\s*[+-]?[0-9]", value) is None


class _TorchLoadWatch:
    """A finder that finds nothing, but records whether the fallback switch is on when torch is loaded.

    The first look-up of a module inside torch shows that. A look-up of torch itself does not:
    `importlib.util.find_spec("torch")` looks without loading (transformers does that).
    """

    # With torch in memory already, the switch as it stands now is the best evidence there is.
    seen: bool | None = switched_on(os.environ.get(FALLBACK)) if "torch" in sys.modules else None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.startswith("torch."):
            self.seen = switched_on(os.environ.get(FALLBACK))
            # A new list, because the import system is iterating over the old one and would skip the next finder.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


_watch = _TorchLoadWatch()
if "torch" not in sys.modules:
    sys.meta_path.insert(0, _watch)


def fallback_when_torch_loaded() -> bool | None:
    """Returns True if PYTORCH_ENABLE_MPS_FALLBACK was on when torch was loaded; None before that."""
    return _watch.seen if "torch" in sys.modules else None


def mac_version() -> str:
    return platform.mac_ver()[0]


def import_torch() -> Any:
    return importlib.import_module("torch")


def physical_memory() -> int:
    try:
        import psutil
    except ImportError:  # doctor runs before anything is installed
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return psutil.virtual_memory().total


def _sysctl(name: str) -> bytes | None:
    """Returns a value of macOS's sysctl, without a subprocess; None where the name or the call is unknown."""
    try:
        import ctypes

        ask = ctypes.CDLL(None).sysctlbyname
        size, nothing = ctypes.c_size_t(0), ctypes.c_size_t(0)
        if ask(name.encode(), None, ctypes.byref(size), None, nothing) != 0:
            return None
        value = ctypes.create_string_buffer(size.value)
        status = ask(name.encode(), value, ctypes.byref(size), None, nothing)
    except (ImportError, AttributeError, OSError, TypeError):
        return None
    return value.raw[: size.value] if status == 0 else None


def sysctl_int(name: str) -> int | None:
    """Returns an integer of any width, such as hw.memsize (64 bits) or sysctl.proc_translated (32)."""
    value = _sysctl(name)
    return None if value is None else int.from_bytes(value, sys.byteorder, signed=True)


def sysctl_text(name: str) -> str | None:
    """Returns a text such as machdep.cpu.brand_string."""
    value = _sysctl(name)
    return None if value is None else value.rstrip(b"\0").decode(errors="replace") or None


def version_of(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except Exception:  # it is not installed, or its files are damaged
        return None


def free_bytes(folder: str) -> int | None:
    """Returns the free space where `folder` is or would be made; None where that is unknown."""
    import shutil

    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def cpuinfo(*names: str) -> str | None:
    """Returns the first value of one of `names` in Linux's list of processors."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(names)), None)
    except OSError:
        return None


def intel_gpus(folder: str = "/sys/class/drm") -> int:
    """Returns the number of Intel's GPUs that Linux lists in `folder`."""
    from pathlib import Path

    vendors = (file.read_text() for file in Path(folder).glob("card*/device/vendor"))
    try:
        return sum(vendor.strip() == "0x8086" for vendor in vendors)
    except OSError:
        return 0


def recommended_bytes() -> int | None:
    import torch

    try:
        return int(torch.mps.recommended_max_memory())
    except (AttributeError, RuntimeError):
        return None


def mlx_backends() -> str | None:
    """Returns the names of MLX's distributed backends that run here; None if it cannot be loaded."""
    try:
        import mlx.core as mx

        return ", ".join(name for name in ("ring", "jaccl") if mx.distributed.is_available(name))
    except Exception:  # MLX is not installed, is too old for this, or its library does not load
        return None


def names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def low_power_mode() -> bool | None:
    """Returns True if macOS saves energy (Low Power Mode); None where the system does not tell."""
    import subprocess

    try:
        asked = subprocess.run(["pmset", "-g"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return saves_power(asked.stdout)


def saves_power(settings: str) -> bool | None:
    """Returns True if the output of `pmset -g` has Low Power Mode on; None if it has no such line."""
    # Macs with a High Power Mode have powermode in place of lowpowermode: 0 is automatic, 1 low, 2 high
    found = re.search(r"^\s*(?:low)?powermode\s+(\d)", settings, re.MULTILINE)
    return None if found is None else found[1] == "1"
