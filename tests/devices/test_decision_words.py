"""The sentences of a decision: why this device, why not the others, and what would change it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mps_trainer import DeviceUnavailableError, resolve
from mps_trainer.devices import DeviceRequest
from tests.devices.machines import CUDA_1, XPU_2, mac, no_mps, pc, under_torchrun

MAC = mac("15.1", "2.15.0")


def rejected(decision) -> dict[str, tuple[str, str]]:
    return {other.name: (other.why, other.remedy) for other in decision.rejected}


def test_use_cpu_says_what_would_choose_the_others():
    decision = resolve(DeviceRequest(use_cpu=True), MAC)
    assert decision.reason == "use_cpu=True asks for the CPU"
    assert rejected(decision)["mps"] == (
        "available, but use_cpu=True asks for the CPU",
        "without use_cpu, accelerator='mps' chooses it",
    )


def test_the_cpu_by_name_says_what_would_choose_the_others():
    decision = resolve(DeviceRequest(accelerator="cpu"), MAC)
    assert decision.reason == "accelerator='cpu' asks for the CPU"
    assert rejected(decision)["mps"] == (
        "available, but accelerator='cpu' asks for the CPU",
        "accelerator='mps' chooses it",
    )


def test_use_cpu_sets_a_request_for_a_gpu_aside():
    decision = resolve(DeviceRequest(accelerator="MPS", use_cpu=True), MAC)
    assert decision.reason == "use_cpu=True asks for the CPU, so the request for accelerator='mps' was ignored"


def test_a_variable_of_accelerate_is_named_with_its_value():
    decision = resolve(DeviceRequest(), replace(MAC, environment={"ACCELERATE_USE_CPU": "yes"}))
    why = "the environment variable ACCELERATE_USE_CPU=yes, which `accelerate launch --cpu` sets, asks for the CPU"
    assert decision.reason == why
    assert rejected(decision)["mps"] == (
        f"available, but {why}",
        "without ACCELERATE_USE_CPU, accelerator='mps' chooses it",
    )


def test_an_accelerator_by_name_says_so():
    decision = resolve(DeviceRequest(accelerator="mps"), MAC)
    assert decision.reason == "accelerator='mps' asks for it, and it works here"
    assert rejected(decision)["cpu"] == (
        "available, but accelerator='mps' was requested",
        "accelerator='cpu' chooses it",
    )


@pytest.mark.parametrize(
    ("asked", "facts", "reason"),
    [
        (
            "auto",
            MAC,
            "accelerator='auto' takes the first usable of mps, cuda, xpu, cpu, and an allocation on mps worked "
            "(macOS 15.1, torch 2.15.0)",
        ),
        (
            "gpu",
            replace(MAC, system="Linux", mps_simulated=True),
            "accelerator='gpu' takes the first usable of mps, cuda, xpu, and an allocation on mps worked "
            "(Linux 15.1, torch 2.15.0)",
        ),
        ("gpu", pc(**CUDA_1), "accelerator='gpu' takes the first usable of mps, cuda, xpu"),
        ("auto", pc(), "accelerator='auto' takes the first usable of mps, cuda, xpu, cpu"),
    ],
)
def test_the_first_usable_one_is_named_with_the_order(asked, facts, reason):
    decision = resolve(DeviceRequest(accelerator=asked), facts)
    assert decision.reason == reason
    passed_over = [other for other in decision.rejected if other.why.startswith("available")]
    assert [other.name for other in passed_over] == ([] if decision.type == "cpu" else ["cpu"])
    for other in passed_over:
        assert other.why == f"available, but {decision.type} comes first"
        assert other.remedy == "accelerator='cpu' chooses it"


def test_without_any_gpu_each_cause_and_remedy_is_named():
    with pytest.raises(DeviceUnavailableError) as refused:
        resolve(DeviceRequest(accelerator="gpu"), pc())
    causes, remedies = refused.value.cause.split("; "), refused.value.remedy.split("; ")
    assert [cause.partition(":")[0] for cause in causes] == ["mps", "cuda", "xpu"]
    assert [remedy.partition(":")[0] for remedy in remedies if ": " in remedy] == ["mps", "cuda", "xpu"]
    assert str(refused.value) == (
        f"accelerator='gpu' was requested, and no GPU can be used here. {refused.value.cause}. "
        f"What to do: {refused.value.remedy}; or take accelerator='cpu'."
    )


def test_an_accelerator_that_cannot_run_says_why_and_what_to_do():
    with pytest.raises(DeviceUnavailableError) as refused:
        resolve(DeviceRequest(accelerator="mps"), no_mps("12.2", "1.13.1"))
    assert str(refused.value) == (
        f"accelerator='mps' was requested, and it cannot run here: {refused.value.cause}. "
        f"What to do: {refused.value.remedy}."
    )
    assert "12.2" in refused.value.cause


@pytest.mark.parametrize("facts", [mac("15.1", None), mac("15.1", None, machine="x86_64", rosetta=True), pc(None)])
def test_where_nothing_trains_the_error_has_cause_and_remedy(facts):
    with pytest.raises(DeviceUnavailableError) as refused:
        resolve(DeviceRequest(), facts)
    cause, remedy = refused.value.cause, refused.value.remedy
    assert str(refused.value) == f"Nothing can be trained here: {cause}. What to do: {remedy}."
    assert cause
    assert remedy
    assert cause != remedy
    assert (", and " in cause) is bool(facts.rosetta)


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"cuda_built": True, "cuda_count": 2}, "1 more cuda device would stay idle; torchrun --nproc_per_node 2 "),
        ({"cuda_built": True, "cuda_count": 8}, "7 more cuda devices would stay idle; torchrun --nproc_per_node 8 "),
        (XPU_2, "1 more xpu device would stay idle; torchrun --nproc_per_node 2 "),
    ],
)
def test_idle_devices_are_counted(settings, note):
    assert resolve(DeviceRequest(), pc(**settings)).notes == (f"{note}SCRIPT trains on all of them.",)


def test_numbers_of_processes_are_those_of_the_launcher():
    alone = resolve(DeviceRequest(), pc())
    assert (alone.world_size, alone.rank, alone.local_rank, alone.restarts) == (1, 0, 0, 0)
    facts = replace(under_torchrun(pc(), 4, 3), torchelastic_restart_count=2)
    decision = resolve(DeviceRequest(), facts)
    assert (decision.world_size, decision.rank, decision.restarts) == (4, 3, 2)
    assert decision.meeting_point is None
