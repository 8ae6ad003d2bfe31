"""Tests the text of a decision: the reason, the rejected devices, and the remedies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.devices import ACCELERATORS, DeviceRequest, resolve
from tests.devices.machines import MACHINES, pc, under_torchrun


def refusal(request: DeviceRequest, facts) -> str:
    with pytest.raises(MisconfigurationException) as refused:
        resolve(request, facts)
    return str(refused.value)


@pytest.mark.parametrize(
    ("machine", "devices", "processes", "asks"),
    [
        ("linux", 1, 2, None),
        ("linux", 2, 1, "2 processes on cpu"),
        ("linux", 2, 3, "2 processes on cpu"),
        ("linux_8_cuda", 3, 1, "3 devices on cuda"),
        ("linux_8_cuda", [4], 2, "1 device on cuda"),
        ("linux_8_cuda", [4, 5], 2, None),
    ],
)
def test_devices_are_as_many_as_processes(machine, devices, processes, asks):
    facts = MACHINES[machine] if processes == 1 else under_torchrun(MACHINES[machine], processes)
    if asks is None:
        assert resolve(DeviceRequest(devices=devices), facts).world_size == processes
        return
    said = refusal(DeviceRequest(devices=devices), facts)
    started = "one process was" if processes == 1 else f"the launcher started {processes} processes on this machine"
    assert said.startswith(f"devices={devices!r} asks for {asks}, and {started}")
    assert f"torchrun --nproc_per_node {asks.split()[0]} SCRIPT" in said


def test_more_processes_than_gpus_are_refused_with_the_number_that_fits():
    facts = under_torchrun(MACHINES["linux_1_cuda"], 3, local_rank=1)
    assert refusal(DeviceRequest(), facts) == (
        "LOCAL_RANK is 1 (counted from 0), and this machine has 1 usable CUDA GPU. Start no more processes than that: "
        "torchrun --nproc_per_node 1."
    )
    facts = under_torchrun(MACHINES["linux_8_cuda"], 9, local_rank=8)
    assert "this machine has 8 usable CUDA GPUs. " in refusal(DeviceRequest(), facts)
    assert "srun --ntasks-per-node=8, or show each all GPUs of its node" in refusal(
        DeviceRequest(), replace(facts, slurm=True)
    )


def test_processes_on_several_machines_need_a_device_each_on_their_own():
    facts = replace(under_torchrun(MACHINES["linux_8_cuda"], 4, local_rank=1), local_world_size=2, rank=3)
    decision = resolve(DeviceRequest(devices=[6, 7]), facts)
    assert (decision.name, decision.rank, decision.world_size) == ("cuda:7", 3, 4)
    assert "the launcher started 2 processes on this machine" in refusal(DeviceRequest(devices=4), facts)


@pytest.mark.parametrize(
    ("request_", "machine", "reason"),
    [
        (DeviceRequest(use_cpu=True), "m3_macos_15", "use_cpu=True asks for the CPU"),
        (DeviceRequest(accelerator="CPU"), "m3_macos_15", "accelerator='cpu' asks for the CPU"),
        (
            DeviceRequest(use_cpu=True, accelerator="mps"),
            "m3_macos_15",
            "use_cpu=True asks for the CPU, so the request for accelerator='mps' was ignored",
        ),
        (
            DeviceRequest(accelerator="gpu"),
            "m3_accelerate_cpu",
            "the environment variable ACCELERATE_USE_CPU=True, which `launch --cpu` sets, asks for the CPU"
            ", so the request for accelerator='gpu' was ignored",
        ),
        (
            DeviceRequest(),
            "m3_macos_15",
            "accelerator='auto' takes the first usable of mps, cuda, xpu, cpu, and an allocation on mps worked "
            "(macOS 15.1, torch 2.15.0)",
        ),
        (DeviceRequest("gpu"), "linux_1_cuda", "accelerator='gpu' takes the first usable of mps, cuda, xpu"),
        (DeviceRequest(accelerator="mps"), "m3_macos_15", "accelerator='mps' asks for it, and it works here"),
    ],
)
def test_the_reason_of_a_choice(request_, machine, reason):
    assert resolve(request_, MACHINES[machine]).reason == reason


def rejected(request: DeviceRequest, facts) -> dict[str, tuple[str, str, bool]]:
    return {each.name: (each.why, each.remedy, each.repairable) for each in resolve(request, facts).rejected}


@pytest.mark.parametrize(
    ("request_", "environment", "why", "condition"),
    [
        (DeviceRequest(), {}, "mps comes first", ""),
        (DeviceRequest(accelerator="mps"), {}, "accelerator='mps' was requested", ""),
        (DeviceRequest(use_cpu=True), {}, "use_cpu=True asks for the CPU", "without use_cpu, "),
        (DeviceRequest(accelerator="cpu"), {}, "accelerator='cpu' asks for the CPU", ""),
        (DeviceRequest(), {"ACCELERATE_USE_CPU": "1"}, "the environment variable ", "without ACCELERATE_USE_CPU, "),
    ],
)
def test_the_others_that_are_available_are_named_with_what_chooses_them(request_, environment, why, condition):
    facts = replace(MACHINES["linux_simulated_mps"], cuda_built=True, cuda_count=1, environment=environment)
    others = rejected(request_, facts)
    assert others["cuda"][0].startswith(f"available, but {why}")
    assert others["cuda"][1] == f"{condition}accelerator='cuda' chooses it"


@pytest.mark.parametrize(("machine", "repairable"), [("m3_memory_full", True), ("linux", False)])
def test_what_cannot_run_is_rejected_with_cause_and_remedy_and_whether_it_can_be_repaired(machine, repairable):
    obstacle = ACCELERATORS["mps"].why_not(MACHINES[machine])
    assert rejected(DeviceRequest(), MACHINES[machine])["mps"] == (obstacle.cause, obstacle.remedy, repairable)


NOTES = {
    "linux_simulated_mps": ["this mps device is simulated on the CPU; its speed says nothing about a Mac."],
    "m2_rosetta_that_works": [
        "this Python is an x86_64 build that Rosetta emulates; a native arm64 Python is faster."
    ],
    "linux_1_cuda": [],
    "linux_2_xpu": ["1 more xpu device would stay idle; torchrun --nproc_per_node 2 SCRIPT trains on all of them."],
    "linux_8_cuda": ["7 more cuda devices would stay idle; torchrun --nproc_per_node 8 SCRIPT trains on all of them."],
}


@pytest.mark.parametrize(("machine", "notes"), NOTES.items())
def test_the_notes_of_a_choice(machine, notes):
    assert list(resolve(DeviceRequest(), MACHINES[machine]).notes) == notes


def test_there_are_no_notes_of_what_was_not_chosen():
    for machine in ("linux_simulated_mps", "m2_rosetta_that_works", "m3_memory_full", "linux_8_cuda"):
        assert resolve(DeviceRequest(use_cpu=True), MACHINES[machine]).notes == ()
    assert resolve(DeviceRequest(), under_torchrun(MACHINES["linux_8_cuda"], 2)).notes == ()


def test_the_launchers_numbers_are_those_of_the_decision():
    facts = replace(under_torchrun(pc(), 4, local_rank=2), rank=3, torchelastic_restart_count=5)
    decision = resolve(DeviceRequest(), facts)
    assert (decision.world_size, decision.rank, decision.local_rank, decision.restarts) == (4, 3, 2, 5)
    assert decision.meeting_point is None
    assert resolve(DeviceRequest(), replace(facts, slurm=True)).meeting_point == "tcp://127.0.0.1:29500"
