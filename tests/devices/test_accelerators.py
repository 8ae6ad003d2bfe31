"""The classes in Lightning's vocabulary: the same methods in each."""

import abc
import pickle
import sys
import types

import pytest
import torch

from mps_trainer import DeviceUnavailableError, MPSAccelerator, gather_facts
from mps_trainer.devices.accelerators import ACCELERATORS, CPUAccelerator, CUDAAccelerator, XPUAccelerator
from tests.conftest import refusal
from tests.devices.machines import CUDA_1, MACHINES, XPU_2, mac, pc

KINDS = list(ACCELERATORS.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("machine", MACHINES)
def test_an_obstacle_is_a_clause_with_a_remedy(kind, machine):
    facts = MACHINES[machine]
    obstacle = kind.why_not(facts)
    assert ("fp32" in kind.precisions(facts)) == (obstacle is None)
    if obstacle is None:
        assert kind.count(facts) > 0
        return
    assert (kind.precisions(facts), kind.count(facts)) == ((), 0)
    for clause in (obstacle.why, obstacle.remedy):
        assert clause
        assert clause[-1] not in ".;,"
        assert "\n" not in clause


def test_parallel_devices_are_torch_devices():
    assert MPSAccelerator.get_parallel_devices(1) == [torch.device("mps", 0)]
    assert MPSAccelerator.get_parallel_devices("auto") == [torch.device("mps", 0)]
    assert CUDAAccelerator.get_parallel_devices([0, 2]) == [torch.device("cuda", 0), torch.device("cuda", 2)]
    assert XPUAccelerator.get_parallel_devices([1]) == [torch.device("xpu", 1)]
    assert CPUAccelerator.get_parallel_devices(2) == [torch.device("cpu")] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_of_another_kind_cannot_be_set_up(kind):
    other = "cuda" if kind is CPUAccelerator else "cpu"
    assert f"{kind.__name__} cannot set up the device {other}" in refusal(kind.setup_device, torch.device(other))


@pytest.mark.parametrize("kind", KINDS)
def test_an_available_device_is_set_up_read_and_torn_down(kind):
    assert kind.is_available() == (kind.why_not(gather_facts()) is None)
    assert kind.auto_device_count() == kind.count(gather_facts())
    if kind.is_available():
        device = kind.get_parallel_devices("auto" if kind is not CPUAccelerator else 1)[0]
        kind.setup_device(device)
        assert all(isinstance(key, str) for key in kind.get_device_stats(device))
    kind.teardown()  # harmless where there is nothing to give back


def test_the_error_survives_a_process_boundary():
    copy = pickle.loads(pickle.dumps(DeviceUnavailableError("message", "cause", "remedy")))
    assert (str(copy), copy.cause, copy.remedy) == ("message", "cause", "remedy")


def test_an_object_passes_for_lightnings_own_once_lightning_is_loaded(monkeypatch):
    """With Lightning itself: test_lightning.py."""

    class Theirs(abc.ABC):
        @abc.abstractmethod
        def name(self): ...

    for name in [name for name in sys.modules if name.startswith(("lightning", "pytorch_lightning"))]:
        monkeypatch.delitem(sys.modules, name)
    assert not isinstance(MPSAccelerator(), Theirs)
    module = types.ModuleType("lightning.pytorch.accelerators.mps")
    module.MPSAccelerator = Theirs
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert isinstance(MPSAccelerator(), Theirs)


@pytest.mark.parametrize(
    ("kind", "facts", "formats", "scales", "divides"),
    [
        (MPSAccelerator, mac("14.0", "2.7.1"), ("fp32", "fp16", "bf16"), False, False),
        (MPSAccelerator, mac("13.6", "2.8.0"), ("fp32", "fp16"), True, False),
        (MPSAccelerator, mac("14.0", "2.13.0"), ("fp32", "fp16", "bf16"), True, True),
        (MPSAccelerator, MACHINES["linux_simulated_mps"], ("fp32", "fp16", "bf16"), True, False),
        (CUDAAccelerator, pc("2.6.0", **CUDA_1), ("fp32", "fp16", "bf16", "fp64"), True, True),
        (XPUAccelerator, pc("2.13.0", **XPU_2), ("fp32", "fp16", "bf16"), True, False),
        (CPUAccelerator, pc(), ("fp32", "fp16", "bf16", "fp64"), True, True),
    ],
)
def test_precisions_depend_on_device_and_system_and_scaling_on_torch(kind, facts, formats, scales, divides):
    assert kind.precisions(facts) == formats
    assert kind.scales_gradients(facts.torch_version) is scales
    assert kind.divides_gradients(facts.torch_version) is divides
