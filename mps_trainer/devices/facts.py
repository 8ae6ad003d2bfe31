"""What is true of this machine, gathered in one place as plain data.

Nothing else in the package reads `platform`, `sys` or `os.environ` to learn about the machine, so any Mac, virtual
machine or cluster node can be written down as a table row. The top of this file imports the standard library only:
`mps_trainer/__init__` imports it to see the moment at which torch is loaded.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import MisconfigurationException
from ..guards.watermarks import settle_low

FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"

# The variables that change where or how a run trains; the others in the environment are nobody's business here.
RECORDED_VARIABLES = (
    FALLBACK,
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
    "PYTORCH_MPS_LOW_WATERMARK_RATIO",
    "PYTORCH_MPS_FAST_MATH",
    "PYTORCH_MPS_PREFER_METAL",
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_USE_CPU",
    "CUDA_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)

# Set by torchrun for every process it starts; each with the smallest value that makes sense.
LAUNCHER_INTEGERS = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 0}


@dataclass(frozen=True)
class MachineFacts:
    """One machine and one process on it, as data. `to_dict()` and `from_dict()` round-trip through JSON.

    The defaults describe a Linux box without torch, so that a test row names only what makes its machine special.
    """

    system: str = "Linux"  # platform.system(): "Darwin", "Linux", "Windows"
    os_version: str = ""  # "14.5" on a Mac, the kernel release elsewhere
    machine: str = "x86_64"  # architecture of this process: "arm64", "x86_64"; under Rosetta it says x86_64
    rosetta: bool = False  # this process is x86_64 code that an Apple-silicon Mac translates
    virtual_machine: bool | None = None  # macOS only (kern.hv_vmm_present); None where it was not asked
    python_version: str = ""
    python_executable: str = ""

    torch_version: str | None = None  # None: torch is missing or cannot be imported
    torch_error: str | None = None  # first line of why it cannot be imported
    mps_built: bool = False
    mps_available: bool = False
    mps_allocation_ok: bool = False  # one tensor was made on the device and read back
    mps_allocation_error: str | None = None  # first line
    mps_simulated: bool = False  # mps_trainer.simulator has put an mps device into this process
    cuda_built: bool = False  # also true of a ROCm build, which torch shows as cuda
    cuda_count: int = 0
    xpu_built: bool = False
    xpu_count: int = 0

    environment: dict[str, str] = field(default_factory=dict)  # those of RECORDED_VARIABLES that are set
    fallback_when_torch_loaded: bool | None = None  # None: torch has not been loaded in this process

    world_size: int | None = None  # torchrun's WORLD_SIZE; None when not set, and so below
    rank: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None

    @property
    def fallback_set_too_late(self) -> bool:
        """Whether PYTORCH_ENABLE_MPS_FALLBACK is on now and was off when torch read it, which it does once."""
        return switched_on(self.environment.get(FALLBACK)) and self.fallback_when_torch_loaded is False

    def to_dict(self) -> dict[str, Any]:
        """Every field, in types that JSON has."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MachineFacts:
        """The facts that `to_dict()` wrote. Keys it does not know raise TypeError."""
        values = dict(data)
        if "environment" in values:
            values["environment"] = dict(values["environment"])
        return cls(**values)


def switched_on(value: str | None) -> bool:
    """Whether torch takes this value of its fallback switch for on: any number but 0."""
    return value is not None and value.strip() not in ("", "0")


class _TorchLoadWatch:
    """A finder that finds nothing: it notes whether the fallback switch is on each time somebody looks for torch.

    The last look-up before the load is the one that counts, because `importlib.util.find_spec("torch")` looks without
    loading (transformers does that). The first look-up of a module inside torch says that the load is under way.
    """

    def __init__(self, environ: Mapping[str, str], modules: Mapping[str, Any]) -> None:
        self._environ = environ
        # With torch in memory already, the switch as it stands now is the best evidence there is.
        self._seen: bool | None = self._is_on() if "torch" in modules else None

    def _is_on(self) -> bool:
        return switched_on(self._environ.get(FALLBACK))

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "torch":
            self._seen = self._is_on()
        elif fullname.startswith("torch."):
            # A new list, because the import system is iterating over the old one and would skip the next finder.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        return None

    def fallback_when_loaded(self, modules: Mapping[str, Any]) -> bool | None:
        return self._seen if "torch" in modules else None


_watch = _TorchLoadWatch(os.environ, sys.modules)
if "torch" not in sys.modules:
    sys.meta_path.insert(0, _watch)


def fallback_switch() -> bool:
    """Whether PYTORCH_ENABLE_MPS_FALLBACK was on when torch was loaded, or is now if it has yet to be loaded."""
    return bool(_watch.fallback_when_loaded(sys.modules) if "torch" in sys.modules else _watch._is_on())


def macos() -> str | None:
    """The version of macOS, None on any other system."""
    return macos_version(platform.mac_ver()[0], platform.release()) if platform.system() == "Darwin" else None


def _import_torch() -> Any:
    import torch

    return torch


def physical_memory() -> int | None:
    """Bytes of the machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def sysctl_int(name: str) -> int | None:
    """An integer from macOS's sysctl by name, without a subprocess; None where the name or the call is unknown."""
    try:
        import ctypes

        value = ctypes.c_int(0)
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    except (ImportError, AttributeError, OSError, TypeError):
        return None
    return value.value if status == 0 else None


@dataclass(frozen=True)
class Probes:
    """The questions put to the machine, each a tiny function; a test hands in other answers."""

    system: Callable[[], str] = platform.system
    machine: Callable[[], str] = platform.machine
    release: Callable[[], str] = platform.release
    mac_version: Callable[[], str] = lambda: platform.mac_ver()[0]
    sysctl: Callable[[str], int | None] = sysctl_int
    import_torch: Callable[[], Any] = _import_torch
    fallback_when_torch_loaded: Callable[[], bool | None] = lambda: _watch.fallback_when_loaded(sys.modules)


def gather_facts(
    probes: Probes | None = None,
    environ: MutableMapping[str, str] | None = None,
    memory_limit: float | None = None,
) -> MachineFacts:
    """Ask this machine and this process everything that the choice of a device depends on.

    Imports torch, and makes one tensor on the mps device where torch reports one. A torch that is missing or broken is
    a fact (`torch_version` None), not an error.

    That tensor is what makes torch read its memory limits from the environment, so on a Mac the lower one is put there
    before where it would not fit: see `guards.watermarks`.

    Args:
        memory_limit: the share of the recommended maximum to which memory will be limited; None for torch's own.

    Raises MisconfigurationException when one of torchrun's variables is not the number it should be.
    """
    probes = probes or Probes()
    environ = os.environ if environ is None else environ
    launcher = _launcher_facts(environ)
    platform_facts = _platform_facts(probes)
    environment = {name: environ[name] for name in RECORDED_VARIABLES if name in environ}
    if platform_facts["system"] == "Darwin":
        settle_low(environ, memory_limit)
    torch_facts = _torch_facts(probes)
    return MachineFacts(
        **platform_facts,
        **torch_facts,
        **launcher,
        python_version=platform.python_version(),
        python_executable=sys.executable or "",
        environment=environment,
        # After torch was imported above, or the watch has seen nothing yet.
        fallback_when_torch_loaded=probes.fallback_when_torch_loaded(),
    )


def _platform_facts(probes: Probes) -> dict[str, Any]:
    system = probes.system()
    if system != "Darwin":
        return {"system": system, "machine": probes.machine(), "os_version": probes.release()}
    virtual = probes.sysctl("kern.hv_vmm_present")
    return {
        "system": system,
        "machine": probes.machine(),
        "os_version": macos_version(probes.mac_version(), probes.release()),
        # platform.processor() says i386 and platform.machine() x86_64 under Rosetta, as on an Intel Mac; this differs.
        "rosetta": probes.sysctl("sysctl.proc_translated") == 1,
        "virtual_machine": None if virtual is None else virtual == 1,
    }


def macos_version(reported: str, darwin_release: str) -> str:
    """The version of macOS, where `platform.mac_ver()` may tell an old program an old-style number.

    A Python built with an SDK older than macOS 11 is told 10.16 for every later macOS, and one built with an SDK older
    than macOS 26 is told 16 for 26 (cpython issue 135675). The Darwin kernel's release is not disguised: 21.4 is macOS
    12.3, 22.1 is 13.0, 23.0 is 14.0, 24.0 is 15.0, 25.0 is 26.0.
    """
    if not reported.startswith(("10.16", "16.")) and reported not in ("", "16"):
        return reported
    try:
        darwin, minor = (int(part) for part in (darwin_release + ".0").split(".")[:2])
    except ValueError:
        return reported
    if darwin < 20:
        return reported
    major = darwin + 1 if darwin >= 25 else darwin - 9
    return f"{major}.{max(minor - 1, 0)}" if darwin <= 22 else f"{major}.{minor}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _torch_facts(probes: Probes) -> dict[str, Any]:
    try:
        torch = probes.import_torch()
        version = str(torch.__version__)
    except Exception as error:  # a broken installation raises OSError, AttributeError and worse
        return {"torch_version": None, "torch_error": f"{type(error).__name__}: {_first_line(error)}"}
    facts: dict[str, Any] = {"torch_version": version}
    facts.update(_mps_facts(torch))
    facts["cuda_built"] = bool(torch.version.cuda or getattr(torch.version, "hip", None))
    facts["cuda_count"] = int(torch.cuda.device_count())
    xpu = getattr(torch, "xpu", None)
    facts["xpu_built"] = bool(getattr(xpu, "_is_compiled", lambda: False)())
    facts["xpu_count"] = int(torch.xpu.device_count()) if facts["xpu_built"] else 0
    return facts


def _mps_facts(torch: Any) -> dict[str, Any]:
    mps = torch.backends.mps
    facts: dict[str, Any] = {"mps_built": bool(mps.is_built()), "mps_available": bool(mps.is_available())}
    facts["mps_simulated"] = bool(getattr(mps, "simulated", False))
    if facts["mps_available"]:
        try:
            # Allocate, run a kernel and read back: virtual Macs report MPS and then fail every allocation
            # (actions/runner-images 9918, 11899), so nothing less is proof.
            torch.ones(1, device="mps").item()
            facts["mps_allocation_ok"] = True
        except Exception as error:
            facts["mps_allocation_error"] = _first_line(error)
    return facts


def _launcher_facts(environ: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        name.lower(): _launcher_integer(environ, name, smallest) for name, smallest in LAUNCHER_INTEGERS.items()
    }
    facts["master_addr"] = environ.get("MASTER_ADDR")
    _check_rank(facts, "RANK", "WORLD_SIZE")
    _check_rank(facts, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return facts


def _launcher_integer(environ: Mapping[str, str], name: str, smallest: int) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = smallest - 1
    if value < smallest:
        raise MisconfigurationException(
            f"The environment variable {name} is {text!r}, which is not a whole number of at least {smallest}. "
            f"torchrun sets it for the processes it starts; unset it to train in one process, or start with torchrun."
        )
    return value


def _check_rank(facts: Mapping[str, Any], rank: str, size: str) -> None:
    number, count = facts[rank.lower()], facts[size.lower()]
    if number is not None and count is not None and number >= count:
        raise MisconfigurationException(
            f"The environment variable {rank} is {number} while {size} is {count}, so this process has no place among "
            f"the others ({rank} counts from 0). Unset both to train in one process, or start with torchrun."
        )


def parse_version(text: str | None) -> tuple[int, ...]:
    """The first two numbers of a version such as "2.9.0+cpu" or "14.5"; () when it does not begin with a number."""
    match = re.match(r"(\d+)(?:\.(\d+))?", text or "")
    return () if match is None else (int(match[1]), int(match[2] or 0))
