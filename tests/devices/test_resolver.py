"""Each machine gets a device for each request, with a reason, or a message that says why there is none."""

import json
import logging
import re
from dataclasses import replace

import pytest
import torch

from mps_trainer import DeviceUnavailableError, MPSAccelerator, TrainingArguments
from mps_trainer.devices import ACCELERATORS, DeviceRequest, resolve
from tests.conftest import refusal
from tests.devices.machines import CUDA_8, MACHINES, XPU_2, mac, pc, under_torchrun

MAC, LINUX, CUDA = MACHINES["m3_macos_15"], MACHINES["linux"], MACHINES["linux_8_cuda"]
TWO_MACS = replace(under_torchrun(MAC, 2), local_world_size=1)
TWO_NODES = replace(CUDA, world_size=4, rank=3, local_rank=1, local_world_size=2)

# machine -> the GPU that accelerator="auto" gets; the others train on the CPU
GPUS = {
    **dict.fromkeys(["m1_macos_12.3", "m1_macos_13_torch_2.8", "m2_macos_14", "m3_macos_15", "m4_macos_26"], "mps"),
    **dict.fromkeys(["m2_rosetta_that_works", "linux_simulated_mps", "m3_accelerate_not_cpu"], "mps"),
    **dict.fromkeys(["linux_1_cuda", "linux_8_cuda", "windows_1_cuda"], "cuda:0"),
    "linux_2_xpu": "xpu:0",
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
    ("m1_macos_12.7_torch_2.5", "mps", "torch 2.5.1 runs MPS from macOS 13.0 on", "update macOS to 13 or later"),
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

# machine, request, device
ASKED = [
    ("m3_macos_15", {"ddp_backend": "mlx"}, "mps"),
    ("linux_8_cuda", {"devices": [3]}, "cuda:3"),
    ("linux_8_cuda", {"devices": "3,"}, "cuda:3"),
    ("linux_1_cuda", {"devices": -1}, "cuda:0"),
    *(("linux_8_cuda", {"devices": devices}, "cuda:0") for devices in ("auto", None, 1, "1")),
    *(("linux_8_cuda", {"devices": devices, "use_cpu": True}, "cpu") for devices in ("auto", None, 1, "1", -1)),
    *(("m3_macos_15", {"devices": devices}, "mps") for devices in ("auto", None, 1, "1", -1, "-1", [0], (0,), "0,")),
]

SENSELESS = [0, "0", [], "", -2, "one", True, 1.0, [0.0], [-1], [0, 0], [0, -1]]


def refused(facts, **request) -> str:
    return refusal(resolve, DeviceRequest(**request), facts)


@pytest.mark.parametrize("machine", TRAINING)
def test_auto_takes_the_first_usable_and_names_each_other_once(machine):
    decision = resolve(DeviceRequest(), MACHINES[machine])
    assert decision.name == GPUS.get(machine, "cpu")
    first, *others = str(decision).splitlines()
    assert first == f"Training runs on {decision.name}: {decision.reason}."
    assert [other.name for other in decision.rejected] == [name for name in ACCELERATORS if name != decision.type]
    assert others[:3] == [f"  not {other.name}: {other.why}; {other.remedy}." for other in decision.rejected]
    data = json.loads(json.dumps(decision.to_dict()))
    assert (data["device"], data["type"]) == (decision.name, decision.type)
    assert decision.device == torch.device(data["device"])
    assert [other["name"] for other in data["rejected"]] == [other.name for other in decision.rejected]


def test_mps_goes_before_cuda_and_cuda_before_xpu():
    everything = {"mps_built": True, "mps_available": True, "mps_allocation_ok": True, **CUDA_8, **XPU_2}
    assert resolve(DeviceRequest(), pc(**everything)).type == "mps"
    assert resolve(DeviceRequest(), pc(**CUDA_8, **XPU_2)).type == "cuda"


@pytest.mark.parametrize(("machine", "request_", "device"), ASKED)
def test_a_device_that_works_is_taken_when_asked_for(machine, request_, device):
    assert resolve(DeviceRequest(**request_), MACHINES[machine]).name == device


@pytest.mark.parametrize(
    ("text", "device"),
    [("1", "cpu"), ("TRUE", "cpu"), ("Yes", "cpu"), (" on ", "cpu"), ("0", "mps"), ("False", "mps"), ("", "mps")],
)
def test_accelerates_switch_for_the_cpu_is_read_as_accelerate_reads_it(text, device):
    facts = mac("15.1", "2.15.0", environment={"ACCELERATE_USE_CPU": text})
    assert resolve(DeviceRequest(), facts).type == device


@pytest.mark.parametrize(
    ("machine", "value", "request_", "device"),
    [
        (MAC, "cpu", {}, "cpu"),
        (MAC, "CPU ", {"accelerator": "gpu"}, "cpu"),
        (MAC, "mps", {}, "mps"),
        (MAC, "", {}, "mps"),
        (MAC, "cpu", {"accelerator": "mps"}, "mps"),  # the script says it
        (CUDA, "cuda", {}, "cuda:0"),
        (CUDA, "cuda:3", {}, "cuda:3"),
        (CUDA, "cuda:3", {"devices": [2]}, "cuda:2"),
        (CUDA, "cuda:3", {"use_cpu": True}, "cpu"),
        (TWO_NODES, "cuda:3", {}, "cuda:1"),  # each process has its own
    ],
)
def test_accelerates_variable_names_the_device_that_a_script_leaves_open(machine, value, request_, device):
    facts = replace(machine, environment={"ACCELERATE_TORCH_DEVICE": value})
    decision = resolve(DeviceRequest(**request_), facts)
    assert decision.name == device
    is_by_variable = value.strip() and not (request_.keys() & {"use_cpu"}) and request_.get("accelerator") != "mps"
    assert ("ACCELERATE_TORCH_DEVICE" in decision.reason) == bool(is_by_variable)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("xpu", "ACCELERATE_TORCH_DEVICE=xpu was requested, and it cannot run here: "),
        ("tpu", "ACCELERATE_TORCH_DEVICE='tpu' in the environment is not a device that this package knows"),
        ("cuda:one", "ACCELERATE_TORCH_DEVICE='cuda:one' in the environment is not a device"),
    ],
)
def test_a_device_of_accelerates_variable_that_is_not_there_is_refused(value, says):
    facts = replace(MAC, environment={"ACCELERATE_TORCH_DEVICE": value})
    assert refusal(resolve, DeviceRequest(), facts).startswith(says)


@pytest.mark.parametrize(("machine", "accelerator", "cause", "remedy"), UNAVAILABLE)
def test_an_accelerator_that_cannot_run_is_an_error_with_cause_and_remedy(machine, accelerator, cause, remedy):
    with pytest.raises(DeviceUnavailableError) as caught:
        resolve(DeviceRequest(accelerator=accelerator), MACHINES[machine])
    error = caught.value
    asked = f"accelerator='{accelerator}' was requested, and it cannot run here"
    assert str(error) == f"{asked}: {error.cause}. What to do: {error.remedy}."
    assert cause in error.cause
    assert remedy in error.remedy


@pytest.mark.parametrize(("machine", "cause", "remedy"), NOTHING_TRAINS)
@pytest.mark.parametrize("request_", [{}, {"accelerator": "cpu"}, {"use_cpu": True}])
def test_without_torch_nothing_trains(machine, cause, remedy, request_):
    said = refusal(resolve, DeviceRequest(**request_), MACHINES[machine], kind=DeviceUnavailableError)
    assert cause in said
    assert remedy in said


@pytest.mark.parametrize("machine", ["linux", "intel_mac", "github_macos_15", "windows", "linux_torch_missing"])
def test_gpu_without_any_names_all_three_causes(machine):
    said = refused(MACHINES[machine], accelerator="gpu")
    for gpu in ("mps", "cuda", "xpu"):
        obstacle = ACCELERATORS[gpu].why_not(MACHINES[machine])
        assert f"{gpu}: {obstacle.why}" in said
        assert f"{gpu}: {obstacle.remedy}" in said


@pytest.mark.parametrize("accelerator", ["metal", "tpu", "", None, 1])
def test_an_unknown_accelerator_is_refused_with_the_accepted_ones(accelerator):
    said = refused(MAC, accelerator=accelerator)
    assert repr(accelerator) in said
    for accepted in ("auto", "mps", "cuda", "xpu", "cpu", "gpu"):
        assert f"'{accepted}'" in said


VARIABLE = "the environment variable ACCELERATE_USE_CPU=True, which `launch --cpu` sets,"
IGNORED = "{} asks for the CPU, so the request for accelerator='{}' was ignored"
FIRST = "accelerator='{}' takes the first usable of mps, cuda, xpu"
WORKED = ", cpu, and an allocation on mps worked (macOS 15.1, torch 2.15.0)"


@pytest.mark.parametrize(
    ("request_", "machine", "reason"),
    [
        ({"use_cpu": True}, "m3_macos_15", "use_cpu=True asks for the CPU"),
        ({"accelerator": "CPU"}, "m3_macos_15", "accelerator='cpu' asks for the CPU"),
        ({"use_cpu": True, "accelerator": "mps"}, "m3_macos_15", IGNORED.format("use_cpu=True", "mps")),
        ({"accelerator": "gpu"}, "m3_accelerate_cpu", IGNORED.format(VARIABLE, "gpu")),
        ({}, "m3_macos_15", FIRST.format("auto") + WORKED),
        ({"accelerator": "gpu"}, "linux_1_cuda", FIRST.format("gpu")),
        ({"accelerator": "mps"}, "m3_macos_15", "accelerator='mps' asks for it, and it works here"),
    ],
)
def test_the_reason_of_a_choice(request_, machine, reason):
    assert resolve(DeviceRequest(**request_), MACHINES[machine]).reason == reason


@pytest.mark.parametrize(
    ("request_", "environment", "why", "condition"),
    [
        ({}, {}, "mps comes first", ""),
        ({"accelerator": "mps"}, {}, "accelerator='mps' was requested", ""),
        ({"use_cpu": True}, {}, "use_cpu=True asks for the CPU", "without use_cpu, "),
        ({"accelerator": "cpu"}, {}, "accelerator='cpu' asks for the CPU", ""),
        ({}, {"ACCELERATE_USE_CPU": "1"}, "the environment variable ", "without ACCELERATE_USE_CPU, "),
    ],
)
def test_the_others_that_are_available_are_named_with_what_chooses_them(request_, environment, why, condition):
    facts = replace(MACHINES["linux_simulated_mps"], cuda_built=True, cuda_count=1, environment=environment)
    (cuda,) = (each for each in resolve(DeviceRequest(**request_), facts).rejected if each.name == "cuda")
    assert cuda.why.startswith(f"available, but {why}")
    assert cuda.remedy == f"{condition}accelerator='cuda' chooses it"


IDLE = "{} more {} would stay idle; torchrun --nproc_per_node {} SCRIPT trains on all of them."
NOTES = {
    "linux_simulated_mps": ["this mps device is simulated on the CPU; its speed says nothing about a Mac."],
    "m2_rosetta_that_works": [
        "this Python is an x86_64 build that Rosetta emulates; a native arm64 Python is faster."
    ],
    "m3_memory_full": [],
    "linux_1_cuda": [],
    "linux_2_xpu": [IDLE.format(1, "xpu device", 2)],
    "linux_8_cuda": [IDLE.format(7, "cuda devices", 8)],
}


@pytest.mark.parametrize(("machine", "notes"), NOTES.items())
def test_the_notes_of_a_choice_and_none_of_what_was_not_chosen(machine, notes):
    assert list(resolve(DeviceRequest(), MACHINES[machine]).notes) == notes
    assert resolve(DeviceRequest(use_cpu=True), MACHINES[machine]).notes == ()
    if "cuda" in machine:
        assert resolve(DeviceRequest(), under_torchrun(CUDA, 2)).notes == ()


def test_a_fallback_switch_set_too_late_is_noted_on_mps_alone():
    late = {"environment": {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}, "fallback_when_torch_loaded": False}
    assert "PYTORCH_ENABLE_MPS_FALLBACK" in str(resolve(DeviceRequest(), mac("15.1", "2.15.0", **late)))
    assert resolve(DeviceRequest(), pc(**late)).notes == ()
    in_time = {**late, "fallback_when_torch_loaded": True}
    assert resolve(DeviceRequest(), mac("15.1", "2.15.0", **in_time)).notes == ()


@pytest.mark.parametrize("machine", ["m2_macos_14_torch_2.15", "m1_rosetta_torch_without_mps", "m3_memory_full"])
def test_a_run_says_why_the_gpu_stays_idle_and_what_to_do(machine, monkeypatch, caplog):
    """In one line, at the level that a run shows."""
    monkeypatch.setattr("mps_trainer.training_args.gather_facts", lambda **settings: MACHINES[machine])
    (mps, *_) = TrainingArguments("out").decision.rejected
    obstacle = ACCELERATORS["mps"].why_not(MACHINES[machine])
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    remedy = obstacle.remedy[0].upper() + obstacle.remedy[1:]
    assert said == f"Training on cpu, not mps: {obstacle.why}. {remedy}."
    assert (mps.why, mps.remedy, mps.repairable) == (obstacle.why, obstacle.remedy, True)


def test_a_gpu_that_is_not_wanted_or_not_there_stays_idle_silently():
    for asked in (DeviceRequest("cpu"), DeviceRequest(use_cpu=True)):
        assert resolve(asked, MACHINES["m1_rosetta_torch_without_mps"]).idle is None
    for machine in ("intel_mac", "github_macos_15", "m3_macos_15", "linux"):
        assert resolve(DeviceRequest(), MACHINES[machine]).idle is None


@pytest.mark.parametrize("devices", SENSELESS, ids=repr)
def test_a_request_for_no_devices_or_a_senseless_one_is_refused_everywhere(devices):
    for machine in ("linux", "linux_8_cuda", "linux_2_xpu", "m3_macos_15"):
        assert refused(MACHINES[machine], devices=devices).startswith("devices=")
    assert refusal(MPSAccelerator.get_parallel_devices, devices).startswith("devices=")


@pytest.mark.parametrize(
    ("machine", "devices", "said"),
    [
        *(("m3_macos_15", devices, "devices=") for devices in (2, "2", [0, 1], "0,1", [1])),
        *(("linux_1_cuda", devices, "this machine has 1 usable CUDA GPU") for devices in (2, [1])),
        *(("linux_8_cuda", devices, "this machine has 8 usable CUDA GPU") for devices in ([8], 10**12)),
        ("linux", [0], "names GPUs by index"),
    ],
)
def test_more_devices_than_exist_are_refused(machine, devices, said):
    accelerator = {"m3_macos_15": "mps", "linux": "cpu"}.get(machine, "auto")
    assert said in refused(MACHINES[machine], accelerator=accelerator, devices=devices)
    if accelerator == "mps":
        assert re.search(said, refusal(MPSAccelerator.get_parallel_devices, devices))


@pytest.mark.parametrize(
    ("machine", "devices", "processes", "asks"),
    [
        ("linux", 1, 2, None),
        ("linux", 2, 1, "2 devices on cpu"),
        ("linux", 2, 3, "2 devices on cpu"),
        ("linux_8_cuda", 3, 1, "3 devices on cuda"),
        ("linux_8_cuda", -1, 1, "8 devices on cuda"),
        ("linux_8_cuda", [4], 2, "1 device on cuda"),
        ("linux_8_cuda", [4, 5], 2, None),
    ],
)
def test_devices_are_as_many_as_processes(machine, devices, processes, asks):
    facts = MACHINES[machine] if processes == 1 else under_torchrun(MACHINES[machine], processes)
    if asks is None:
        assert resolve(DeviceRequest(devices=devices), facts).world_size == processes
        return
    said = refused(facts, devices=devices)
    assert said.startswith(f"devices={devices!r} asks for {asks}, one for each process, but {processes} process")
    assert f"torchrun --nproc_per_node {asks.split()[0]} SCRIPT" in said


# The facts of a process, its request, and its device.
PLACES = [
    *((under_torchrun(CUDA, 8, local_rank=5), {"devices": devices}, "cuda:5") for devices in (1, "auto", 8, -1)),
    (under_torchrun(CUDA, 8, local_rank=5), {"devices": [7, 6, 5, 4, 3, 2, 1, 0]}, "cuda:2"),
    (under_torchrun(CUDA, 2), {}, "cuda:0"),
    (under_torchrun(MACHINES["linux_2_xpu"], 2, local_rank=1), {}, "xpu:1"),
    (under_torchrun(LINUX, 4, local_rank=3), {"devices": 4}, "cpu"),
    (under_torchrun(MAC, 1), {}, "mps"),
    (replace(CUDA, world_size=16, rank=11, local_rank=3, local_world_size=8), {"devices": 8}, "cuda:3"),
    (TWO_NODES, {"devices": [6, 7]}, "cuda:7"),
    *((replace(TWO_MACS, mlx=True), {"accelerator": accelerator}, "mps") for accelerator in ("auto", "mps", "gpu")),
    (replace(under_torchrun(LINUX, 2), mlx=True), {"ddp_backend": "mlx"}, "cpu"),
    # the ways on that a refusal names
    (under_torchrun(MAC, 2, local_rank=1), {"use_cpu": True, "ddp_backend": "gloo"}, "cpu"),
    (under_torchrun(MAC, 2, local_rank=1), {"accelerator": "cpu", "ddp_backend": "gloo"}, "cpu"),
]


@pytest.mark.parametrize(("facts", "request_", "device"), PLACES)
def test_each_process_takes_the_device_of_its_local_rank(facts, request_, device):
    decision = resolve(DeviceRequest(**request_), facts)
    assert (decision.name, decision.world_size) == (device, facts.world_size)
    assert (decision.rank, decision.local_rank) == (facts.rank, facts.local_rank)
    assert (f"process {facts.rank} of {facts.world_size} " in str(decision)) == (facts.world_size > 1)
    assert not any("share the one GPU" in note for note in decision.notes)


def test_processes_of_one_mac_share_its_gpu_and_a_decision_has_the_launchers_numbers():
    decision = resolve(DeviceRequest(), replace(under_torchrun(MAC, 2), mlx=True))
    assert "2 processes share the one GPU of this Mac" in decision.notes[0]
    facts = replace(under_torchrun(pc(), 4, local_rank=2), rank=3, torchelastic_restart_count=5)
    decision = resolve(DeviceRequest(), facts)
    assert (decision.restarts, decision.meeting_point) == (5, None)
    assert resolve(DeviceRequest(), replace(facts, slurm=True)).meeting_point == "tcp://127.0.0.1:29500"


WAYS_ON = r"not installed.*pip install 'mps_trainer\[several-macs\]'.*plain python.*use_cpu=True"
NINE = under_torchrun(CUDA, 9, local_rank=8)
REFUSED = [
    (TWO_MACS, {"accelerator": "auto"}, rf"started 2 processes, and on mps they.*{WAYS_ON}"),
    (under_torchrun(MACHINES["m2_rosetta_that_works"], 2), {}, rf"started 2 processes, and on mps they.*{WAYS_ON}"),
    (under_torchrun(LINUX, 2), {"ddp_backend": "mlx"}, r"ddp_backend='mlx' needs MLX, which.*leave ddp_backend out"),
    (replace(CUDA, world_size=2, rank=1), {}, "LOCAL_RANK is not set"),
    (
        under_torchrun(MACHINES["linux_1_cuda"], 3, local_rank=1),
        {},
        r"^LOCAL_RANK is 1 \(counted from 0\), and this machine has 1 usable CUDA GPU\. Start no more processes than "
        r"that: torchrun --nproc_per_node 1\.$",
    ),
    (NINE, {}, r"this machine has 8 usable CUDA GPUs\. "),
    (replace(NINE, slurm=True), {}, "srun --ntasks-per-node=8, or show each all GPUs of its node"),
    (TWO_NODES, {"devices": 4}, "but 2 processes started on this machine"),
    *(
        (MAC, {"ddp_backend": name}, rf"ddp_backend='{name}' cannot be used on mps.*Take 'mlx', or leave")
        for name in ("gloo", "nccl", "mpi", "ccl", "xccl", "hccl")
    ),
    (LINUX, {"ddp_backend": "nccl"}, "'nccl' cannot be used on cpu: it needs cuda. Take one of 'gloo', 'mpi', 'ccl'"),
    (CUDA, {"ddp_backend": "ccl"}, "it needs xpu or cpu. Take one of 'nccl', 'gloo'"),
    (LINUX, {"ddp_backend": "smoke-signals"}, "no accelerator of this package uses it"),
]


@pytest.mark.parametrize(("facts", "request_", "said"), REFUSED)
def test_processes_and_backends_that_do_not_fit_the_machine_are_refused(facts, request_, said):
    assert re.search(said, refused(facts, **request_))


@pytest.mark.parametrize("machine", ["m3_macos_15", "linux_simulated_mps"])
def test_a_default_of_float64_is_the_reason_for_the_cpu(machine):
    error = "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
    facts = replace(MACHINES[machine], mps_allocation_ok=False, mps_allocation_error=error)
    decision = resolve(DeviceRequest(), facts)
    assert decision.name == "cpu"
    assert "torch's default number format is float64, which mps does not have" in str(decision.rejected[0].why)
    said = refusal(resolve, DeviceRequest(accelerator="mps"), facts, kind=DeviceUnavailableError)
    assert "call torch.set_default_dtype(torch.float32)" in said
