"""Facts about this machine, gathered in one place as plain data.

Only this file and `probes.py`, which it asks, read `platform`, `sys` or `os.environ` to learn about the machine. So
any Mac, virtual machine or cluster node can be written down as a table row.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from ..utils.text import first_line, format_bytes
from . import probes
from .launchers import launcher_facts
from .probes import FALLBACK, switched_on, unreadable_switch
from .watermarks import settle_low

TORCH_DEVICE = "ACCELERATE_TORCH_DEVICE"  # Accelerate's variable, such as cpu or cuda:1

# The variables that change where or how a run trains.
RECORDED_VARIABLES = (
    FALLBACK,
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
    "PYTORCH_MPS_LOW_WATERMARK_RATIO",
    "PYTORCH_MPS_FAST_MATH",
    "PYTORCH_MPS_PREFER_METAL",
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_USE_CPU",
    TORCH_DEVICE,
    "CUDA_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)

# An issue has to name these, and training needs most of them.
PACKAGES = (
    "torch",
    "transformers",
    "datasets",
    "accelerate",
    "peft",
    "numpy",
    "safetensors",
    "mlx",
    "bitsandbytes",
    "kernels",
)

_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # x86 has the first two, arm64 the last
CHIP = "machdep.cpu.brand_string"  # the sysctl with the name of a Mac's chip


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
    cuda_built: bool = False  # a ROCm build counts, which torch shows as cuda
    cuda_count: int = 0
    xpu_built: bool = False
    xpu_count: int = 0
    intel_gpus: int | None = None  # Linux lists them, whatever torch can see; None on other systems

    environment: dict[str, str] = field(default_factory=dict)  # the RECORDED_VARIABLES that are set
    fallback_when_torch_loaded: bool | None = None  # None: torch has not been loaded in this process

    world_size: int | None = None  # torchrun's WORLD_SIZE, or srun's; None when not set, and so below
    rank: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    torchelastic_restart_count: int | None = None
    slurm: bool = False  # the processes are a step of Slurm, from which the numbers above are
    mlx_launch: bool = False  # mlx.launch has started the processes, and the numbers above are from its variables
    mlx: bool = False  # MLX is installed, over which several processes on mps exchange gradients; unknown for one

    # Only a report wants these: for_a_report() fills them in, gather_facts() leaves them unknown.
    chip: str | None = None  # "Apple M3 Pro"; under Rosetta a Mac says "VirtualApple @ 2.50GHz"
    cpu_bfloat16: bool | None = None  # the processor has instructions for bfloat16; Linux only
    model: str | None = None  # macOS only (hw.model): "Mac15,6"
    memory_bytes: int | None = None
    recommended_bytes: int | None = None  # Metal recommends to hold no more on mps
    mlx_backends: str | None = None  # MLX's distributed engines, "ring, jaccl"; None except on a Mac with MLX
    conda: bool | None = None  # this Python belongs to an environment of conda
    nvidia_gpus: int | None = None  # NVIDIA's driver lists them, whatever torch can see; Linux only
    cache_folder: str | None = None
    cache_free_bytes: int | None = None
    packages: dict[str, str] = field(default_factory=dict)  # versions of the installed PACKAGES

    @property
    def fallback_set_too_late(self) -> bool:
        """Returns True if PYTORCH_ENABLE_MPS_FALLBACK is on now and was off when torch read it, which it does once."""
        return switched_on(self.environment.get(FALLBACK)) and self.fallback_when_torch_loaded is False

    def to_dict(self) -> dict[str, Any]:
        """Returns every field, in types that JSON has."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MachineFacts:
        """Returns the facts that `to_dict()` wrote. Unknown keys raise TypeError."""
        values: dict[str, Any] = {name: dict(v) if isinstance(v, Mapping) else v for name, v in data.items()}
        return cls(**values)


def system_line(facts: Mapping[str, Any]) -> str:
    """Returns the operating system in facts as `to_dict()` has them, such as "macOS 15.1"."""
    name = "macOS" if facts.get("system") == "Darwin" else facts.get("system") or ""
    return f"{name} {facts.get('os_version') or ''}".strip()


def machine_line(facts: Mapping[str, Any], *names: str) -> str:
    """Returns the facts of these names that are known, such as "Apple M3 Pro, 18.0 GiB of memory"."""
    memory = facts.get("memory_bytes")
    known = {**facts, "memory_bytes": memory and f"{format_bytes(memory)} of memory"}
    return ", ".join(str(known[name]) for name in names if known.get(name))


def macos() -> str | None:
    """Returns the version of macOS; None on any other system."""
    return macos_version(probes.mac_version(), probes.release()) if probes.system() == "Darwin" else None


def apple_chip() -> str | None:
    """Returns the name of a Mac's chip, such as "Apple M2 Pro"; None on any other system."""
    return probes.sysctl_text(CHIP) if probes.system() == "Darwin" else None


def cpu_bfloat16() -> bool | None:
    """Returns True if the processor has instructions that multiply bfloat16; None where the system does not say.

    None also for arm64 without them, where nothing was measured.
    """
    flags = probes.cpuinfo("flags", "Features") if probes.system() == "Linux" else None
    if flags is None:
        return None
    return not _BFLOAT16_FLAGS.isdisjoint(flags.split()) or (None if "asimd" in flags else False)


def gather_facts(environ: MutableMapping[str, str] | None = None, memory_limit: float | None = None) -> MachineFacts:
    """Asks this machine and this process everything that the choice of a device depends on.

    Imports torch, and makes one tensor on the mps device where torch reports one. A torch that is missing or broken is
    a fact (`torch_version` None), not an error.

    That tensor is what makes torch read its memory limits from the environment, so on a Mac the lower one is put there
    before where it would not fit: see `watermarks`.

    Args:
        memory_limit: the share of the recommended maximum to which memory will be limited; None for torch's own.

    Raises MisconfigurationException for a wrong value of one of a launcher's variables.
    """
    environ = os.environ if environ is None else environ
    launcher = launcher_facts(environ)
    platform_facts, is_mac = _platform_facts(), probes.system() == "Darwin"
    launcher["mlx"] = (launcher["world_size"] or 1) > 1 and probes.version_of("mlx") is not None
    environment = {name: environ[name] for name in RECORDED_VARIABLES if name in environ}
    if is_mac:
        settle_low(environ, memory_limit)
    torch_facts = _torch_facts(environ.get(FALLBACK) if is_mac else None)
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


def for_a_report(facts: MachineFacts) -> MachineFacts:
    """Returns `facts`, gathered on this machine, and those for a report: chip, memory, disk, versions of packages.

    The user's home folder is ~ in every text, because a report is shown to others.
    """
    from ..utils.home import cache_folder

    mac, linux = facts.system == "Darwin", facts.system == "Linux"
    versions = {package: probes.version_of(package) for package in PACKAGES}
    folder = None if (cache := cache_folder()) is None else str(cache)
    values = {
        **vars(facts),
        "chip": probes.sysctl_text(CHIP) if mac else probes.cpuinfo("model name") if linux else None,
        "cpu_bfloat16": cpu_bfloat16(),
        "model": probes.sysctl_text("hw.model") if mac else None,
        "memory_bytes": probes.physical_memory(),
        "recommended_bytes": probes.recommended_bytes() if facts.mps_allocation_ok else None,
        "mlx_backends": probes.mlx_backends() if mac and versions["mlx"] is not None else None,
        "conda": "conda-meta" in probes.names_in(sys.prefix),
        # One folder for each GPU. A container without access to them may list them too.
        "nvidia_gpus": len(probes.names_in("/proc/driver/nvidia/gpus")) if linux else None,
        "mlx": versions["mlx"] is not None,
        "cache_folder": folder,
        "cache_free_bytes": None if folder is None else probes.free_bytes(folder),
        "packages": {package: version for package, version in versions.items() if version is not None},
    }
    return MachineFacts(**{name: without_home(value) for name, value in values.items()})


def without_home(value: Any) -> Any:
    """Returns a text, or a dictionary of texts, with ~ for the home folder; other values as they are."""
    home = os.path.expanduser("~").rstrip("/\\")
    if isinstance(value, dict):
        return {name: without_home(text) for name, text in value.items()}
    if not isinstance(value, str) or len(home) < 2 or home == "~":
        return value
    return re.sub(re.escape(home) + r"(?![\w.-])", "~", value)


def _platform_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {"system": probes.system(), "machine": probes.machine(), "os_version": probes.release()}
    if facts["system"] == "Linux":
        facts["intel_gpus"] = probes.intel_gpus()
    if facts["system"] == "Darwin":
        facts["os_version"] = macos_version(probes.mac_version(), probes.release())
        # platform.processor() says i386 and platform.machine() x86_64 under Rosetta, as on an Intel Mac; this differs.
        facts["rosetta"] = probes.sysctl_int("sysctl.proc_translated") == 1
        virtual = probes.sysctl_int("kern.hv_vmm_present")
        facts["virtual_machine"] = None if virtual is None else virtual == 1
    return facts


def macos_version(reported: str, darwin_release: str) -> str:
    """Returns the version of macOS, also where `platform.mac_ver()` tells an old program an old number.

    A Python built with an SDK older than macOS 11 sees 10.16 for every later macOS, and one built with an SDK older
    than macOS 26 sees 16 for 26 (cpython issue 135675). The Darwin kernel's release is not disguised: 21.4 is macOS
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


def _torch_facts(switch: str | None) -> dict[str, Any]:
    try:
        if "torch" not in sys.modules and unreadable_switch(switch):  # loading torch would end the process
            raise ValueError(f"it takes a whole number for {FALLBACK}")
        torch = probes.import_torch()
        version = str(torch.__version__)
    except Exception as error:  # a broken installation raises OSError, AttributeError and worse
        return {"torch_version": None, "torch_error": f"{type(error).__name__}: {first_line(error)}"}
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
            # Allocate, run a kernel and read back: some virtual Macs report MPS and then fail every allocation
            # (actions/runner-images 9918, 11899), and others run small models (14380), so nothing less is proof.
            torch.ones(1, device="mps").item()
            facts["mps_allocation_ok"] = True
        except Exception as error:
            facts["mps_allocation_error"] = first_line(error)
    return facts


def parse_version(text: str | None, numbers: int = 2) -> tuple[int, ...]:
    """Returns the first `numbers` of a version such as "2.9.0+cpu" or "14.5", filled up with 0; () if it has none."""
    match = re.match(r"\d+(\.\d+)*", text or "")
    return () if match is None else tuple(map(int, f"{match[0]}{numbers * '.0'}".split(".")[:numbers]))
