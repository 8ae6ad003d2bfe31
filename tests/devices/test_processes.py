"""torchrun's processes and torch.distributed's backends, on each kind of device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.devices import DeviceRequest, resolve
from tests.devices.machines import MACHINES, under_torchrun

WAYS_ON = r"not installed.*pip install 'mps_trainer\[several-macs\]'.*plain python.*use_cpu=True"


@pytest.mark.parametrize("accelerator", ["auto", "mps", "gpu"])
@pytest.mark.parametrize("machine", ["m3_macos_15", "m2_rosetta_that_works"])
def test_two_processes_on_mps_need_mlx(machine, accelerator):
    facts = replace(under_torchrun(MACHINES[machine], 2), local_world_size=1)
    with pytest.raises(ValueError, match=rf"started 2 processes, and on mps they.*{WAYS_ON}"):
        resolve(DeviceRequest(accelerator=accelerator), facts)
    decision = resolve(DeviceRequest(accelerator=accelerator), replace(facts, mlx=True))
    assert (decision.name, decision.world_size) == ("mps", 2)
    assert not any("share the one GPU" in note for note in decision.notes)


def test_processes_of_one_mac_share_its_gpu():
    decision = resolve(DeviceRequest(), replace(under_torchrun(MACHINES["m3_macos_15"], 2), mlx=True))
    assert "2 processes share the one GPU of this Mac" in decision.notes[0]


def test_mlx_on_the_cpu_needs_mlx():
    facts = under_torchrun(MACHINES["linux"], 2)
    with pytest.raises(MisconfigurationException, match=r"ddp_backend='mlx' needs MLX, which.*leave ddp_backend out"):
        resolve(DeviceRequest(ddp_backend="mlx"), facts)
    assert resolve(DeviceRequest(ddp_backend="mlx"), replace(facts, mlx=True)).name == "cpu"


@pytest.mark.parametrize("request_", [DeviceRequest(use_cpu=True), DeviceRequest(accelerator="cpu")])
def test_the_way_on_works_the_cpu_of_a_mac_takes_gloo_and_several_processes(request_):
    facts = under_torchrun(MACHINES["m3_macos_15"], 2, local_rank=1)
    decision = resolve(replace(request_, ddp_backend="gloo"), facts)
    assert (decision.name, decision.world_size, decision.rank, decision.local_rank) == ("cpu", 2, 1, 1)
    assert "process 1 of 2" in str(decision)


def test_a_single_process_under_torchrun_trains_on_mps():
    assert resolve(DeviceRequest(), under_torchrun(MACHINES["m3_macos_15"], 1)).name == "mps"


@pytest.mark.parametrize(("machine", "kind"), [("linux_8_cuda", "cuda"), ("linux_2_xpu", "xpu")])
def test_each_process_takes_the_gpu_of_its_local_rank(machine, kind):
    for local_rank in (0, 1):
        decision = resolve(DeviceRequest(), under_torchrun(MACHINES[machine], 2, local_rank))
        assert decision.name == f"{kind}:{local_rank}"
        assert decision.index == local_rank


def test_several_processes_without_local_rank_are_refused_on_gpus():
    facts = replace(MACHINES["linux_8_cuda"], world_size=2, rank=1)
    with pytest.raises(MisconfigurationException, match="LOCAL_RANK is not set"):
        resolve(DeviceRequest(), facts)


def test_two_machines_with_eight_gpus_each():
    facts = replace(MACHINES["linux_8_cuda"], world_size=16, rank=11, local_rank=3, local_world_size=8)
    decision = resolve(DeviceRequest(devices=8), facts)
    assert (decision.name, decision.world_size, decision.rank) == ("cuda:3", 16, 11)


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi", "ccl", "xccl", "hccl"])
def test_no_other_backend_reaches_mps(backend):
    with pytest.raises(ValueError, match=rf"ddp_backend='{backend}' cannot be used on mps.*Take 'mlx', or leave"):
        resolve(DeviceRequest(ddp_backend=backend), MACHINES["m3_macos_15"])
    assert resolve(DeviceRequest(ddp_backend="mlx"), MACHINES["m3_macos_15"]).name == "mps"


@pytest.mark.parametrize(
    ("machine", "backend", "words"),
    [
        ("linux", "nccl", "it needs cuda. Take one of 'gloo', 'mpi', 'ccl', 'mlx'"),
        ("linux", "xccl", "it needs xpu."),
        ("linux_8_cuda", "ccl", "it needs xpu or cpu. Take one of 'nccl', 'gloo'"),
        ("linux", "smoke-signals", "no accelerator of this package uses it"),
    ],
)
def test_backends_that_do_not_reach_the_device_are_refused(machine, backend, words):
    with pytest.raises(MisconfigurationException) as caught:
        resolve(DeviceRequest(ddp_backend=backend), MACHINES[machine])
    assert f"ddp_backend='{backend}' cannot be used on" in str(caught.value)
    assert words in str(caught.value)
