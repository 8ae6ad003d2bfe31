"""Machines, what is wrong with each, and the one remedy that its owner should see first."""

from dataclasses import dataclass

from mps_trainer import MachineFacts
from mps_trainer.devices.facts import PACKAGES
from tests.devices.machines import CUDA_1, MACHINES, NO_BUILD, ROSETTA, mac, no_mps, pc, under_torchrun

GIB = 1024**3
FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"
INSTALLED = dict.fromkeys((name for name in PACKAGES if name not in ("bitsandbytes", "kernels")), "5.23.0")
QLORA = {**INSTALLED, "bitsandbytes": "0.50.2"}
MACOS_26 = {"chip": "Apple M4", "packages": QLORA}
NVIDIA = {"nvidia_gpus": 2}


@dataclass(frozen=True)
class Diagnosed:
    """A machine, the names of its findings in order, words of the first remedy, and the exit status of doctor."""

    facts: MachineFacts
    findings: str = ""
    remedy: str = ""
    status: int = 0


def known(name: str, *expected) -> Diagnosed:
    return Diagnosed(MACHINES[name], *expected)


def m3(*expected, environment=None, **changes) -> Diagnosed:
    """A Mac on which nothing is wrong but `changes`."""
    return Diagnosed(mac("15.5", "2.15.0", environment=environment or {}, **changes), *expected)


def m1(macos: str, torch: str, remedy: str, **changes) -> Diagnosed:
    return Diagnosed(mac(macos, torch, **{"chip": "Apple M1", **changes}), "wrong-results", remedy)


def broken(error: str, *expected, **changes) -> Diagnosed:
    """A Mac whose torch cannot be imported."""
    return Diagnosed(mac("15.5", None, torch_error=error, **changes), *expected)


def refused(error: str, *expected, **environment) -> Diagnosed:
    failed = {"mps_allocation_ok": False, "mps_allocation_error": error}
    return m3(*expected, environment=environment, **failed)


NATIVE = "install a native arm64 Python"
UPDATE = "update macOS to {} or later"
REAL_MAC = "train on a real Apple-silicon Mac"
NEWER = "python -m pip install -U 'torch>=2."
NO_UPDATE = "see the workaround for it in docs/faults.md: no release of torch or macOS fixes it yet"
UNREADABLE = f"ValueError: it takes a whole number for {FALLBACK}"
ON = {FALLBACK: "1"}
ONLY_TORCH = {"packages": {"torch": "2.15.0"}}
CONDA = {"machine": "x86_64", "rosetta": True, "conda": True, "python_executable": "~/anaconda3/bin/python"}
OTHER_ARCHITECTURE = (
    "ImportError: dlopen(_C.so): (mach-o file, but is an incompatible architecture (have 'x86_64', need 'arm64'))"
)

DIAGNOSED: dict[str, Diagnosed] = {
    # a Mac whose GPU stays idle
    "m1_macos_12.2": known("m1_macos_12.2", "old-macos old-torch", UPDATE.format(12), 1),
    "m2_macos_14_torch_2.15": known("m2_macos_14_torch_2.15", "old-macos", "'torch<2.15'", 1),
    "m2_macos_13_torch_2.15": known("m2_macos_13_torch_2.15", "old-macos", UPDATE.format(15), 1),
    "m1_macos_13_torch_2.10": known("m1_macos_13_torch_2.10", "old-macos", "or install the last torch", 1),
    "torch without mps": known("m3_torch_without_mps", "torch-without-mps", "the arm64 build from PyPI", 1),
    "torch missing": known("m3_torch_missing", "torch", "install torch: python -m pip install torch", 1),
    "torch broken": known("m3_torch_broken", "torch", "reinstall torch: ", 1),
    "torch of another architecture": broken(
        OTHER_ARCHITECTURE, "torch", "of this Python, arm64: python -m pip install", 1
    ),
    "a folder called torch": broken("AttributeError: module 'torch' has no attribute", "torch", "rename it", 1),
    "sandboxed": known("m3_sandboxed", "no-metal", "outside any sandbox", 1),
    "memory full": known("m3_memory_full", "failed-allocation", "free some of this Mac's memory", 1),
    "rosetta": known("m1_rosetta_torch_without_mps", "rosetta", NATIVE, 1),
    "rosetta on an old macos": known("m2_rosetta_old_macos", "rosetta", NATIVE, 1),
    "rosetta without torch": known("m2_rosetta_torch_missing", "rosetta", NATIVE, 1),
    "rosetta that works": known("m2_rosetta_that_works", "rosetta wrong-results", NATIVE),
    "conda for x86": Diagnosed(no_mps("14.5", "2.2.2", **NO_BUILD, **CONDA), "rosetta", "CONDA_SUBDIR=osx-arm64", 1),
    "the CPU by environment": known("m3_accelerate_cpu", "asked-for-cpu", "unset ACCELERATE_USE_CPU", 1),
    "the CPU by Accelerate's device": Diagnosed(
        mac("15.1", "2.15.0", environment={"ACCELERATE_TORCH_DEVICE": "cpu"}),
        "asked-for-cpu",
        "unset ACCELERATE_TORCH_DEVICE",
        1,
    ),
    "the CPU by environment, under rosetta": Diagnosed(
        no_mps("14.5", "2.2.2", **ROSETTA, environment={"ACCELERATE_USE_CPU": "1"}), "rosetta", NATIVE, 1
    ),
    # Macs that have no GPU to train on
    "intel": known("intel_mac", "intel-mac", "train on an Apple-silicon Mac"),
    "intel without torch": known("intel_mac_torch_missing", "intel-mac", "train on an Apple-silicon Mac", 1),
    "virtual": known("github_macos_15", "virtual-mac", REAL_MAC),
    "virtual without Metal": known("virtual_mac_without_metal", "virtual-mac", REAL_MAC),
    "virtual without transformers": Diagnosed(
        no_mps("15.4", "2.15.0", virtual_machine=True, **ONLY_TORCH), "transformers virtual-mac", "transformers", 1
    ),
    # torch has these faults
    "faults that an update of torch mends": known("m2_macos_14", "wrong-results", UPDATE.format(15)),
    "an m1 whose torch is too old": m1("15.5", "2.13.0", f"{NEWER}15'; docs/faults.md"),
    "an m1 with the newest torch": m1("15.5", "2.15.0", NO_UPDATE),
    "a virtual mac that works": Diagnosed(mac("15.7", "2.15.0", chip="Apple M3 (Virtual)", virtual_machine=True)),
    "a virtual m1": m1("15.7", "2.13.0", NEWER + "15'", chip="Apple M1 (Virtual)", virtual_machine=True),
    "a fault of macos": Diagnosed(mac("27.0", "2.15.0", chip="Apple M4"), "wrong-results", NO_UPDATE),
    "torch too old for the package": known("m1_macos_12.3", "old-torch wrong-results", UPDATE.format(15), 1),
    "torch too old on linux": Diagnosed(pc("2.5.1"), "old-torch", NEWER + "6'", 1),
    # the switch for operators without a kernel
    "switch late": m3("late-switch", "set it in the shell", environment=ON, fallback_when_torch_loaded=False),
    "switch on": m3("switch-on", "mps-trainer check SCRIPT", environment=ON, fallback_when_torch_loaded=True),
    "switch off": m3(environment={FALLBACK: "0"}, fallback_when_torch_loaded=False),
    "switch true": broken(UNREADABLE, "unreadable-switch", "or set it to 1", 1, environment={FALLBACK: "true"}),
    # limits of memory
    "no limit": m3("no-limit", f"unset {HIGH}", environment={HIGH: "0.0"}),
    "a limit that is no number": m3("no-limit", f"unset {HIGH}", environment={HIGH: "much"}),
    "a limit with a unit": m3("unclear-limits", "a number such as 0.8", environment={HIGH: "0.7GB"}),
    "a low limit that is no number": m3("unclear-limits", "a number such as 0.8", environment={LOW: "little"}),
    "a limit beyond": m3("limits-beyond", f"unset {HIGH}", environment={HIGH: "1.5"}),
    "a limit": m3(environment={HIGH: "0.8", LOW: "0.6"}),
    "low above high": refused(
        "invalid low watermark ratio 0.9", "refused-limits", f"unset {HIGH} {LOW};", 1, **{HIGH: "0.5", LOW: "0.9"}
    ),
    "low above torch's own high": refused("watermark ratio", "refused-limits", f"unset {LOW};", 1, **{LOW: "1.8"}),
    "high out of range": refused(
        "invalid high watermark ratio", "refused-limits", f"unset {HIGH};", 1, **{HIGH: "80"}
    ),
    # these concern what a launcher left, memory, disk, packages
    "torchrun on a mac": Diagnosed(
        under_torchrun(MACHINES["m3_macos_15"], 2), "several-processes", "start the script with python", 1
    ),
    "torchrun on a mac with mlx": Diagnosed(
        under_torchrun(mac("15.5", "2.15.0", mlx=True, mlx_backends="ring"), 2), "several-macs", "docs/several-macs.md"
    ),
    "mlx over thunderbolt": m3("several-macs", "docs/several-macs.md", mlx=True, mlx_backends="ring, jaccl"),
    "mlx that cannot be loaded": m3("several-macs", "python -m pip install -U mlx", mlx=True),
    "mlx without mps": Diagnosed(
        mac("15.5", None, mlx=True, mlx_backends="ring"), "torch", "install torch: python -m pip install torch", 1
    ),
    "one process of torchrun": Diagnosed(
        under_torchrun(MACHINES["m3_macos_15"], 1), "one-process", "if no launcher was used: unset WORLD_SIZE"
    ),
    "a rank beyond the GPUs": Diagnosed(pc(**CUDA_1, local_rank=3), "refused", "torchrun --nproc_per_node 1", 1),
    "8 GiB": m3("little-memory", "auto_find_batch_size=True", memory_bytes=8 * GIB),
    "16 GiB": m3(memory_bytes=16 * GIB),
    "disk full": m3("little-disk", "HF_HOME", cache_folder="~/.cache/mps_trainer", cache_free_bytes=2 * GIB),
    "fast math": m3("fast-math", "unset it", environment={"PYTORCH_MPS_FAST_MATH": "1"}),
    "transformers missing": m3("transformers", "install transformers: ", 1, **ONLY_TORCH),
    "transformers old": m3("transformers", ">=5.4,<6'", 1, packages={**INSTALLED, "transformers": "4.57.1"}),
    # bitsandbytes and its Metal kernels, for torch 2.10 to 2.12 on macOS 26
    "bitsandbytes on macOS 15": m3("slow-quantization", "load_mlx_model", packages=QLORA),
    "bitsandbytes on a newer torch": Diagnosed(
        mac("26.2", "2.13.0", **MACOS_26), "wrong-results slow-quantization", NEWER
    ),
    "bitsandbytes without kernels": Diagnosed(
        mac("26.2", "2.12.0", **MACOS_26), "wrong-results slow-quantization", NEWER
    ),
    "bitsandbytes with kernels": Diagnosed(
        mac("26.2", "2.12.0", **{**MACOS_26, "packages": {**QLORA, "kernels": "0.10"}}), "wrong-results", NEWER
    ),
    "bitsandbytes on linux": Diagnosed(pc("2.15.0", packages=QLORA)),
    # several at once: what keeps the GPU idle first, then what goes wrong, notes last
    "an old mac in disorder": Diagnosed(
        mac(
            *("13.7.4", "2.8.0"),
            **{"environment": {FALLBACK: "1", HIGH: "0"}, "fallback_when_torch_loaded": True, **ONLY_TORCH},
            **{"memory_bytes": 8 * GIB, "cache_folder": "~/.cache/mps_trainer", "cache_free_bytes": GIB},
        ),
        "transformers wrong-results no-limit little-memory little-disk switch-on",
        "install transformers",
        1,
    ),
    # other systems
    "linux": known("linux"),
    "linux with the CPU's torch and a GPU": Diagnosed(pc("2.15.0+cpu", **NVIDIA), "cuda", "a build with CUDA", 1),
    "linux with a GPU that torch does not find": Diagnosed(pc(cuda_built=True, **NVIDIA), "cuda", "`nvidia-smi`", 1),
    "linux with hidden GPUs": Diagnosed(
        pc(cuda_built=True, environment={"CUDA_VISIBLE_DEVICES": "-1"}, **NVIDIA), "cuda", "unset CUDA_VIS", 1
    ),
    "linux that may have hidden GPUs": known("linux_cuda_hidden", "cuda", "unset CUDA_VISIBLE_DEVICES"),
    "linux with CUDA's torch and no GPU": known("linux_cuda_build_without_driver"),
    "linux with 8 GPUs": known("linux_8_cuda", "idle-gpus", "torchrun --nproc_per_node 8 SCRIPT"),
    "linux with 8 GPUs and the CPU by environment": known(
        "linux_8_cuda_accelerate_cpu", "asked-for-cpu", "unset ACCELERATE_USE_CPU", 1
    ),
    "linux with Intel's torch": known("linux_xpu_without_driver", "xpu", "`sycl-ls` lists an Intel GPU"),
    "linux with 2 of Intel's": known("linux_2_xpu", "idle-gpus", "ZE_AFFINITY_MASK=1"),
    "simulated": known("linux_simulated_mps", "simulated", "without mps_trainer.simulator"),
    "docker on a mac": Diagnosed(
        pc(machine="aarch64", os_version="6.10.14-linuxkit"), "container-on-a-mac", "a Python for macOS"
    ),
    "variables for mps where it is not": Diagnosed(
        pc("2.15.0", environment={FALLBACK: "true", HIGH: "much", "PYTORCH_MPS_FAST_MATH": "1"})
    ),
    "all well": known("m3_macos_15"),
    "not the CPU by environment": known("m3_accelerate_not_cpu"),
}

FACTS = {**MACHINES, **{name: row.facts for name, row in DIAGNOSED.items()}}
