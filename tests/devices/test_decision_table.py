"""Tests which device each machine gets, and the message where it gets none."""

from __future__ import annotations

import logging
import re

import pytest

from mps_trainer import DeviceUnavailableError, MisconfigurationException, TrainingArguments
from mps_trainer.devices import ACCELERATORS, DeviceRequest, resolve
from mps_trainer.devices.accelerators.mps import NATIVE_PYTHON
from tests.devices.machines import CUDA_8, MACHINES, XPU_2, mac, pc

# machine -> the GPU that accelerator="auto" gets; the others train on the CPU
GPUS = {
    "m1_macos_12.3": "mps",
    "m1_macos_13_torch_2.8": "mps",
    "m2_macos_14": "mps",
    "m3_macos_15": "mps",
    "m4_macos_26": "mps",
    "m2_rosetta_that_works": "mps",
    "linux_1_cuda": "cuda:0",
    "linux_8_cuda": "cuda:0",
    "linux_2_xpu": "xpu:0",
    "linux_simulated_mps": "mps",
    "windows_1_cuda": "cuda:0",
    "m3_accelerate_not_cpu": "mps",
}

# machine, what nothing can train there for, the way on
NOTHING_TRAINS = [
    ("m3_torch_missing", "torch is not installed", "pip install torch"),
    ("m3_torch_broken", "dlopen(libtorch_cpu.dylib)", "--force-reinstall torch"),
    ("m2_rosetta_torch_missing", "Rosetta", "arm64 Python"),
    ("intel_mac_torch_missing", "torch is not installed", "pip install torch"),
    ("linux_torch_missing", "torch is not installed", "pip install torch"),
]

TRAINING = [machine for machine in MACHINES if machine not in {row[0] for row in NOTHING_TRAINS}]

# machine, accelerator, words of the cause, words of the remedy; what keeps a Mac from mps is in diagnosed.py as well
UNAVAILABLE = [
    ("m1_macos_12.2", "mps", "macOS 12.2 is too old: torch 1.13.1 runs MPS from macOS 12.3 on", "update macOS"),
    ("m1_macos_12.7_torch_2.5", "mps", "torch 2.5.1 runs MPS from macOS 13.0 on", "update macOS to 13 or later"),
    ("m1_macos_13_torch_2.10", "mps", "macOS 13.7.4 is too old: torch 2.10.0 runs MPS from macOS 14.0", "'torch<2.9'"),
    ("m2_macos_14_torch_2.15", "mps", "torch 2.15.0 runs MPS from macOS 15.0 on", "update macOS to 15 or later, or"),
    ("m3_memory_full", "mps", "Tried to allocate 256 bytes", "free some of this Mac's memory"),
    ("m1_rosetta_torch_without_mps", "mps", "/usr/local/bin/python3", "native arm64 Python"),
    ("linux", "mps", "this machine runs Linux", "Apple-silicon Mac"),
    ("m3_macos_15", "cuda", "CUDA does not exist on macOS", "NVIDIA GPU"),
    ("m3_macos_15", "xpu", "no XPU build for macOS", "Intel Arc"),
    ("linux", "cuda", "built without CUDA", "CUDA build of torch"),
    ("linux", "xpu", "built without XPU", "train on a machine with an Intel Arc"),
    ("linux_intel_gpu_torch_without_xpu", "xpu", "built without XPU", "pip install torch --index-url"),
    ("linux_torch_missing", "cuda", "torch is not installed", "pip install torch"),
    ("linux_cuda_build_without_driver", "cuda", "no NVIDIA GPU", "nvidia-smi"),
    ("linux_cuda_hidden", "cuda", "CUDA_VISIBLE_DEVICES=''", "unset CUDA_VISIBLE_DEVICES"),
    ("linux_xpu_without_driver", "xpu", "no Intel GPU", "driver"),
]

# machine, accelerator, device
EXPLICIT = [
    ("m1_macos_12.3", "mps", "mps"),
    ("m3_macos_15", "mps", "mps"),
    ("m3_macos_15", "MPS", "mps"),
    ("m3_macos_15", "cpu", "cpu"),
    ("m3_macos_15", "gpu", "mps"),
    ("m2_rosetta_that_works", "mps", "mps"),
    ("linux_1_cuda", "gpu", "cuda:0"),
    ("linux_8_cuda", "cuda", "cuda:0"),
    ("linux_2_xpu", "gpu", "xpu:0"),
    ("linux_2_xpu", "xpu", "xpu:0"),
    ("linux_simulated_mps", "mps", "mps"),
]


@pytest.mark.parametrize("machine", TRAINING)
def test_auto_takes_the_first_usable(machine):
    assert resolve(DeviceRequest(), MACHINES[machine]).name == GPUS.get(machine, "cpu")


@pytest.mark.parametrize(("machine", "accelerator", "device"), EXPLICIT)
def test_an_accelerator_that_works_is_taken_when_asked_for(machine, accelerator, device):
    assert resolve(DeviceRequest(accelerator=accelerator), MACHINES[machine]).name == device


@pytest.mark.parametrize(("machine", "accelerator", "cause", "remedy"), UNAVAILABLE)
def test_an_accelerator_that_cannot_run_is_an_error_with_cause_and_remedy(machine, accelerator, cause, remedy):
    with pytest.raises(DeviceUnavailableError) as caught:
        resolve(DeviceRequest(accelerator=accelerator), MACHINES[machine])
    error = caught.value
    assert str(error) == (
        f"accelerator='{accelerator}' was requested, and it cannot run here: {error.cause}. "
        f"What to do: {error.remedy}."
    )
    assert cause in error.cause
    assert remedy in error.remedy


@pytest.mark.parametrize("machine", MACHINES)
def test_an_error_sends_to_another_python_only_where_the_python_is_emulated(machine, monkeypatch):
    """Through the arguments, as a user meets it."""
    facts = MACHINES[machine]
    monkeypatch.setattr("mps_trainer.training_args.gather_facts", lambda **settings: facts)
    emulated = facts.rosetta and not facts.mps_allocation_ok
    for accelerator in ("mps", "gpu", "auto"):
        try:
            text = str(TrainingArguments("out", accelerator=accelerator).decision)
        except MisconfigurationException as error:
            text = str(error)
            assert ("Rosetta emulates" in text) == emulated
            assert ("x86_64 build" in text) == emulated
        assert (NATIVE_PYTHON in text) == emulated


@pytest.mark.parametrize(("machine", "cause", "remedy"), NOTHING_TRAINS)
@pytest.mark.parametrize("request_", [DeviceRequest(), DeviceRequest("cpu"), DeviceRequest(use_cpu=True)])
def test_without_torch_nothing_trains(machine, cause, remedy, request_):
    with pytest.raises(DeviceUnavailableError) as caught:
        resolve(request_, MACHINES[machine])
    assert cause in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("machine", ["linux", "intel_mac", "github_macos_15", "windows", "linux_torch_missing"])
def test_gpu_without_any_names_all_three_causes(machine):
    with pytest.raises(DeviceUnavailableError) as caught:
        resolve(DeviceRequest(accelerator="gpu"), MACHINES[machine])
    for gpu in ("mps", "cuda", "xpu"):
        obstacle = ACCELERATORS[gpu].why_not(MACHINES[machine])
        assert f"{gpu}: {obstacle.cause}" in str(caught.value)
        assert f"{gpu}: {obstacle.remedy}" in str(caught.value)


@pytest.mark.parametrize("accelerator", ["metal", "tpu", "", None, 1])
def test_an_unknown_accelerator_is_refused_with_the_accepted_ones(accelerator):
    with pytest.raises(MisconfigurationException, match=re.escape(repr(accelerator))) as caught:
        resolve(DeviceRequest(accelerator=accelerator), MACHINES["m3_macos_15"])
    for accepted in ("auto", "mps", "cuda", "xpu", "cpu", "gpu"):
        assert f"'{accepted}'" in str(caught.value)


def test_mps_goes_before_cuda_and_cuda_before_xpu():
    everything = {"mps_built": True, "mps_available": True, "mps_allocation_ok": True, **CUDA_8, **XPU_2}
    assert resolve(DeviceRequest(), pc(**everything)).type == "mps"
    assert resolve(DeviceRequest(), pc(**CUDA_8, **XPU_2)).type == "cuda"


# --- what the decision says --------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", TRAINING)
def test_the_text_puts_the_choice_first_and_names_each_candidate_once(machine):
    decision = resolve(DeviceRequest(), MACHINES[machine])
    first, *others = str(decision).splitlines()
    assert first == f"Training runs on {decision.name}: {decision.reason}."
    assert [other.name for other in decision.rejected] == [name for name in ACCELERATORS if name != decision.type]
    assert others[:3] == [f"  not {other.name}: {other.why}; {other.remedy}." for other in decision.rejected]


@pytest.mark.parametrize("machine", ["m2_macos_14_torch_2.15", "m1_rosetta_torch_without_mps", "m3_memory_full"])
def test_a_run_says_why_the_gpu_stays_idle_and_what_to_do(machine, monkeypatch, caplog):
    """In one line, at the level that a run shows."""
    monkeypatch.setattr("mps_trainer.training_args.gather_facts", lambda **settings: MACHINES[machine])
    _ = TrainingArguments("out").decision
    obstacle = ACCELERATORS["mps"].why_not(MACHINES[machine])
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    remedy = obstacle.remedy[0].upper() + obstacle.remedy[1:]
    assert said == f"Training on cpu, not mps: {obstacle.cause}. {remedy}."


def test_a_gpu_that_is_not_wanted_or_not_there_stays_idle_silently():
    for asked in (DeviceRequest("cpu"), DeviceRequest(use_cpu=True)):
        assert resolve(asked, MACHINES["m1_rosetta_torch_without_mps"]).idle is None
    for machine in ("intel_mac", "github_macos_15", "m3_macos_15", "linux"):
        assert resolve(DeviceRequest(), MACHINES[machine]).idle is None


def test_a_fallback_switch_set_too_late_is_noted_on_mps_alone():
    late = {"environment": {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}, "fallback_when_torch_loaded": False}
    assert "PYTORCH_ENABLE_MPS_FALLBACK" in str(resolve(DeviceRequest(), mac("15.1", "2.15.0", **late)))
    assert resolve(DeviceRequest(), pc(**late)).notes == ()
    in_time = {**late, "fallback_when_torch_loaded": True}
    assert resolve(DeviceRequest(), mac("15.1", "2.15.0", **in_time)).notes == ()


@pytest.mark.parametrize(
    ("text", "device"),
    [("1", "cpu"), ("TRUE", "cpu"), ("Yes", "cpu"), (" on ", "cpu"), ("0", "mps"), ("False", "mps"), ("", "mps")],
)
def test_accelerates_switch_for_the_cpu_is_read_as_accelerate_reads_it(text, device):
    facts = mac("15.1", "2.15.0", environment={"ACCELERATE_USE_CPU": text})
    assert resolve(DeviceRequest(), facts).type == device
