"""The machines whose decisions the pages show, as facts."""

import dataclasses

from tests.devices import machines

MAC = machines.mac("15.5", "2.15.0", fallback_when_torch_loaded=False)
NO_MPS = {"mps_available": False, "mps_allocation_ok": False}
ROSETTA = dataclasses.replace(MAC, **machines.ROSETTA, **NO_MPS)

MACHINES = {
    "virtual-mac": dataclasses.replace(
        MAC, mps_allocation_ok=False, mps_allocation_error="MPS backend out of memory", virtual_machine=True
    ),
    "old-macos": dataclasses.replace(MAC, os_version="14.7"),
    "late-fallback": dataclasses.replace(MAC, environment={"PYTORCH_ENABLE_MPS_FALLBACK": "1"}),
}

# The machines of the pages on doctor and env, with the facts that only these commands read.
M3 = dataclasses.replace(
    MAC, chip="Apple M3 Pro", model="Mac15,6", memory_bytes=18 * 1024**3, recommended_bytes=12 * 1024**3,
    python_version="3.12.4", conda=False, cache_folder="~/.cache/mps_trainer", cache_free_bytes=212 * 1024**3,
    packages={
        "torch": "2.15.0", "transformers": "5.23.0", "datasets": "5.2.0", "accelerate": "1.15.0", "numpy": "2.4.6",
        "safetensors": "0.8.0",
    },
)  # fmt: skip

REPORTED = {
    "mac": M3,
    "rosetta": dataclasses.replace(
        M3, machine="x86_64", rosetta=True, conda=True, python_executable="~/anaconda3/bin/python",
        chip="VirtualApple @ 2.50GHz", torch_version="2.2.2", mps_built=False, **NO_MPS, recommended_bytes=None,
        packages={**M3.packages, "torch": "2.2.2"},
    ),
}  # fmt: skip

# The machine of which README shows a part of doctor's screen, beside "rosetta".
IN_PARTS = {
    **REPORTED,
    "m2": dataclasses.replace(
        M3, chip="Apple M2", model="Mac14,2", memory_bytes=16 * 1024**3, torch_version="2.13.0",
        packages={**M3.packages, "torch": "2.13.0"},
    ),
}  # fmt: skip
