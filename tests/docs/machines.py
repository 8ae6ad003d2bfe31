"""The machines whose decisions the pages show, as facts."""

from __future__ import annotations

import dataclasses

from mps_trainer import MachineFacts

MAC = MachineFacts(
    system="Darwin",
    machine="arm64",
    os_version="15.5",
    python_executable="/opt/homebrew/bin/python3",
    torch_version="2.13.0",
    mps_built=True,
    mps_available=True,
    mps_allocation_ok=True,
    fallback_when_torch_loaded=False,
)


def mac(**differences: object) -> MachineFacts:
    return dataclasses.replace(MAC, **differences)


def mac_without_mps(**differences: object) -> MachineFacts:
    return mac(mps_available=False, mps_allocation_ok=False, **differences)


ROSETTA = mac_without_mps(machine="x86_64", rosetta=True, python_executable="/usr/local/bin/python3")

MACHINES = {
    "mac": MAC,
    "rosetta": ROSETTA,
    "virtual-mac": mac(
        mps_allocation_ok=False, mps_allocation_error="MPS backend out of memory", virtual_machine=True
    ),
    "old-macos": mac_without_mps(os_version="13.6"),
    "late-fallback": mac(environment={"PYTORCH_ENABLE_MPS_FALLBACK": "1"}),
    "linux-cpu": MachineFacts(torch_version="2.13.0+cpu"),
}
