"""Machines as data. Each is what gather_facts() reports there; nothing here patches torch or the platform."""

from dataclasses import replace

from mps_trainer.devices import MachineFacts

OUT_OF_MEMORY = (
    "MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes, max allowed: 7.93 GB). "
    "Tried to allocate 256 bytes on private pool."
)


def mac(macos: str, torch: str | None, **changes) -> MachineFacts:
    """An Apple-silicon Mac whose native torch runs MPS, unless `changes` says otherwise."""
    works = torch is not None
    facts = MachineFacts(
        system="Darwin",
        os_version=macos,
        machine="arm64",
        rosetta=False,
        virtual_machine=False,
        python_executable="/opt/homebrew/bin/python3",
        torch_version=torch,
        torch_error=None if works else "ModuleNotFoundError: No module named 'torch'",
        mps_built=works,
        mps_available=works,
        mps_allocation_ok=works,
    )
    return replace(facts, **changes)


def no_mps(macos: str, torch: str, **changes) -> MachineFacts:
    """A Mac on which torch does not report MPS."""
    return mac(macos, torch, mps_available=False, mps_allocation_ok=False, **changes)


def pc(torch: str | None = "2.9.0", system: str = "Linux", **changes) -> MachineFacts:
    """A Linux or Windows machine without a GPU, unless `changes` says otherwise."""
    error = None if torch else "ModuleNotFoundError: No module named 'torch'"
    return replace(MachineFacts(system=system, torch_version=torch, torch_error=error), **changes)


CUDA_1 = {"cuda_built": True, "cuda_count": 1}
CUDA_8 = {"cuda_built": True, "cuda_count": 8}
XPU_2 = {"xpu_built": True, "xpu_count": 2}
ROSETTA = {"machine": "x86_64", "rosetta": True, "python_executable": "/usr/local/bin/python3"}
NO_BUILD = {"mps_built": False}

MACHINES: dict[str, MachineFacts] = {
    # Apple silicon, native Python
    "m1_macos_12.2": no_mps("12.2", "1.13.1"),
    "m1_macos_12.3": mac("12.3", "1.13.1"),
    "m1_macos_12.7_torch_2.5": no_mps("12.7.6", "2.5.1"),
    "m1_macos_13_torch_2.8": mac("13.7.4", "2.8.0"),
    "m1_macos_13_torch_2.10": no_mps("13.7.4", "2.10.0"),
    "m2_macos_14": mac("14.5", "2.9.0"),
    "m2_macos_14_torch_2.15": mac("14.7", "2.15.0"),  # torch itself takes it, and computes without workarounds
    "m2_macos_13_torch_2.15": no_mps("13.6", "2.15.0"),
    "m3_macos_15": mac("15.1", "2.15.0"),
    "m4_macos_26": mac("26.0", "2.15.0"),
    "m3_torch_without_mps": no_mps("15.1", "2.15.0", **NO_BUILD),
    "m3_torch_missing": mac("15.1", None),
    "m3_torch_broken": mac("15.1", None, torch_error="ImportError: dlopen(libtorch_cpu.dylib): Library not loaded"),
    "m3_sandboxed": no_mps("26.3", "2.12.1"),
    "m3_memory_full": mac("15.1", "2.15.0", mps_allocation_ok=False, mps_allocation_error=OUT_OF_MEMORY),
    # Apple silicon, x86_64 Python under Rosetta
    "m1_rosetta_torch_without_mps": no_mps("13.4", "2.2.2", **ROSETTA, **NO_BUILD),
    "m2_rosetta_mps_built_not_available": no_mps("14.5", "2.2.2", **ROSETTA),
    "m2_rosetta_torch_missing": mac("14.5", None, **ROSETTA),
    "m2_rosetta_old_macos": no_mps("12.2", "1.13.1", **ROSETTA),
    "m2_rosetta_that_works": mac("14.5", "2.2.2", **ROSETTA),
    # other Macs
    "intel_mac": no_mps("13.6", "2.2.2", machine="x86_64"),
    "intel_mac_torch_missing": mac("13.6", None, machine="x86_64"),
    "github_macos_15": mac(
        "15.4", "2.9.0", virtual_machine=True, mps_allocation_ok=False, mps_allocation_error=OUT_OF_MEMORY
    ),
    "virtual_mac_without_metal": no_mps("15.4", "2.9.0", virtual_machine=True),
    # Linux and Windows
    "linux": pc(),
    "linux_torch_missing": pc(torch=None),
    "linux_cuda_build_without_driver": pc(cuda_built=True),
    "linux_cuda_hidden": pc(cuda_built=True, environment={"CUDA_VISIBLE_DEVICES": ""}),
    "linux_1_cuda": pc(**CUDA_1),
    "linux_8_cuda": pc(**CUDA_8),
    "linux_2_xpu": pc(**XPU_2),
    "linux_xpu_without_driver": pc(xpu_built=True),
    "linux_intel_gpu_torch_without_xpu": pc(intel_gpus=1),
    "linux_simulated_mps": pc(mps_built=True, mps_available=True, mps_allocation_ok=True, mps_simulated=True),
    "windows": pc(system="Windows"),
    "windows_1_cuda": pc(system="Windows", **CUDA_1),
    # the CPU by environment
    "m3_accelerate_cpu": mac("15.1", "2.15.0", environment={"ACCELERATE_USE_CPU": "True"}),
    "m3_accelerate_not_cpu": mac("15.1", "2.15.0", environment={"ACCELERATE_USE_CPU": "False"}),
    "linux_8_cuda_accelerate_cpu": pc(**CUDA_8, environment={"ACCELERATE_USE_CPU": "yes"}),
}


def under_torchrun(facts: MachineFacts, processes: int, local_rank: int = 0) -> MachineFacts:
    """The same machine in one of `processes` processes that torchrun started on it."""
    place = {"world_size": processes, "rank": local_rank, "local_rank": local_rank, "local_world_size": processes}
    return replace(facts, **place, master_addr="127.0.0.1", master_port=29500)
