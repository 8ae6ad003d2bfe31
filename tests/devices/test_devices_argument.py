"""The devices that one process gets, for every spelling of `devices`."""

from __future__ import annotations

import pytest
import torch
from transformers import HfArgumentParser

from mps_trainer import DeviceUnavailableError, MisconfigurationException, TrainingArguments
from mps_trainer.devices import DeviceRequest, MPSAccelerator, resolve
from tests.devices.machines import MACHINES, under_torchrun

ONE_MPS = ["auto", None, 1, "1", -1, "-1", [0], (0,), "0,"]
NO_MPS = [2, "2", [0, 1], "0,1", [1], 0, "0", [], "", -2, "one", True, 1.0, [0.0], [-1], [0, 0]]


def test_a_mac_has_one_mps_device():
    for devices in ONE_MPS:
        assert MPSAccelerator.parse_devices(devices) == [0]
        assert resolve(DeviceRequest(devices=devices), MACHINES["m3_macos_15"]).name == "mps"


@pytest.mark.parametrize("devices", NO_MPS, ids=repr)
def test_anything_but_one_mps_device_is_refused(devices):
    with pytest.raises(MisconfigurationException, match=r"^devices="):
        MPSAccelerator.get_parallel_devices(devices)
    with pytest.raises(MisconfigurationException, match=r"^devices="):
        resolve(DeviceRequest(accelerator="mps", devices=devices), MACHINES["m3_macos_15"])


@pytest.mark.parametrize(
    ("devices", "name", "machine"),
    [
        *((devices, "cuda:0", "linux_8_cuda") for devices in ("auto", None, 1, "1")),
        ([3], "cuda:3", "linux_8_cuda"),
        ("3,", "cuda:3", "linux_8_cuda"),
        (-1, "cuda:0", "linux_1_cuda"),
    ],
)
def test_one_process_takes_one_cuda_device(devices, name, machine):
    assert resolve(DeviceRequest(devices=devices), MACHINES[machine]).name == name


@pytest.mark.parametrize(
    ("machine", "devices"),
    [("linux_1_cuda", 2), ("linux_1_cuda", [1]), ("linux_8_cuda", [8]), ("linux_8_cuda", 10**12)],
)
def test_more_cuda_devices_than_exist_are_refused(machine, devices):
    with pytest.raises(MisconfigurationException, match=r"this machine has \d usable CUDA GPU"):
        resolve(DeviceRequest(devices=devices), MACHINES[machine])


@pytest.mark.parametrize("devices", [0, "0", [], "two", True, -2, [0, 0], [0, -1]], ids=repr)
@pytest.mark.parametrize("machine", ["linux", "linux_8_cuda", "linux_2_xpu", "m3_macos_15"])
def test_a_request_for_no_devices_or_a_senseless_one_is_refused_everywhere(machine, devices):
    with pytest.raises(MisconfigurationException, match=r"^devices="):
        resolve(DeviceRequest(devices=devices), MACHINES[machine])


@pytest.mark.parametrize("devices", ["auto", None, 1, "1", -1])
def test_one_process_on_the_cpu(devices):
    decision = resolve(DeviceRequest(devices=devices, use_cpu=True), MACHINES["linux_8_cuda"])
    assert decision.name == "cpu"
    assert decision.index is None


def test_the_cpu_has_no_indices():
    with pytest.raises(MisconfigurationException, match="names GPUs by index"):
        resolve(DeviceRequest(accelerator="cpu", devices=[0]), MACHINES["linux"])


def test_the_number_of_devices_may_stay_in_the_script_under_torchrun():
    for devices in (1, "auto", 8, -1, [7, 6, 5, 4, 3, 2, 1, 0]):
        facts = under_torchrun(MACHINES["linux_8_cuda"], 8, local_rank=5)
        name = "cuda:2" if isinstance(devices, list) else "cuda:5"
        assert resolve(DeviceRequest(devices=devices), facts).name == name
    cpu = under_torchrun(MACHINES["linux"], 4, local_rank=3)
    assert resolve(DeviceRequest(devices=4), cpu).name == "cpu"


# --- the same through TrainingArguments, on a machine that has mps -----------------------------------------------


@pytest.mark.parametrize("words", ["--accelerator mps --devices 1", "--devices auto", "--devices 0,"])
def test_the_command_line_has_the_same_spellings(mps, words):
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--output_dir", "out", *words.split()])
    assert args.device == torch.device("mps")
    assert args.n_gpu == 1


def test_the_arguments_refuse_another_number_of_devices(mps):
    with pytest.raises(MisconfigurationException, match=r"^devices=2 "):
        _ = TrainingArguments("out", devices=2).device


@pytest.mark.parametrize("accelerator", ["mps", "gpu"])
def test_asking_for_a_gpu_by_name_is_an_error_where_there_is_none(monkeypatch, accelerator):
    monkeypatch.setattr("mps_trainer.training_args.gather_facts", lambda **settings: MACHINES["linux"])
    with pytest.raises(DeviceUnavailableError, match=f"^accelerator='{accelerator}' was requested"):
        _ = TrainingArguments("out", accelerator=accelerator, devices=1).device
    assert TrainingArguments("out", accelerator="auto", devices=1).device.type == "cpu"
