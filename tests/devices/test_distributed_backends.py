"""torch.distributed's backends, on each kind of device."""

from __future__ import annotations

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.devices import (
    CPUAccelerator,
    CUDAAccelerator,
    DeviceRequest,
    MPSAccelerator,
    XPUAccelerator,
    resolve,
)
from mps_trainer.devices.distributed_backends import refuse_backend
from tests.devices.machines import MACHINES
from tests.devices.test_processes import BOTH_WAYS_ON


def test_the_backends_of_each_device():
    assert MPSAccelerator.backends == ()
    assert CUDAAccelerator.backends == ("nccl", "gloo")
    assert CPUAccelerator.backends == ("gloo", "mpi", "ccl")
    assert XPUAccelerator.backends == ("xccl", "ccl")


@pytest.mark.parametrize("kind", [MPSAccelerator, CUDAAccelerator, CPUAccelerator, XPUAccelerator])
def test_without_a_backend_every_device_is_taken(kind):
    refuse_backend(kind, None)


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi", "ccl", "xccl", "hccl"])
def test_no_backend_reaches_mps(backend):
    with pytest.raises(ValueError, match=rf"ddp_backend='{backend}'.*{BOTH_WAYS_ON}"):
        resolve(DeviceRequest(ddp_backend=backend), MACHINES["m3_macos_15"])


@pytest.mark.parametrize(
    ("machine", "backend"),
    [("linux", "gloo"), ("linux", "mpi"), ("linux", "ccl"), ("linux_8_cuda", "nccl"), ("linux_8_cuda", "gloo"),
     ("linux_2_xpu", "xccl"), ("linux_2_xpu", "ccl"), ("windows_1_cuda", "gloo")],
)  # fmt: skip
def test_backends_that_reach_the_device_are_taken(machine, backend):
    assert resolve(DeviceRequest(ddp_backend=backend), MACHINES[machine])


@pytest.mark.parametrize(
    ("machine", "backend", "words"),
    [
        ("linux", "nccl", "it needs cuda. Take one of 'gloo', 'mpi', 'ccl'"),
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


def test_the_device_is_chosen_before_the_backend_is_judged():
    """An accelerator that cannot run is the cause to name, whatever the backend."""
    with pytest.raises(MisconfigurationException, match="runs Linux"):
        resolve(DeviceRequest(accelerator="mps", ddp_backend="gloo"), MACHINES["linux"])
