"""An accelerator that is added to the table is taken by all that chooses, describes, saves and measures devices."""

from types import SimpleNamespace

import pytest
import torch

from mps_trainer import DeviceRequest, DeviceStatsMonitor, MachineFacts, resolve
from mps_trainer.checkpoints.rng import rng_state, set_rng
from mps_trainer.devices.accelerators import ACCELERATORS, Accelerator, Obstacle
from mps_trainer.devices.findings import findings, trains_on
from mps_trainer.launching.processes import check_machine
from mps_trainer.launching.settings import DEFAULTS
from tests.conftest import refusal
from tests.devices.machines import pc, under_torchrun


class PretendedAccelerator(Accelerator):
    kind = "tpu_like"
    label = "TPU"
    backends = ("tpuccl",)
    formats = ("fp32", "bf16")
    visible_variable = "VISIBLE_TPUS"
    generator = torch.tensor([1, 2, 3])

    @classmethod
    def why_not(cls, facts: MachineFacts) -> Obstacle | None:
        return None if facts.machine == "tpu" else Obstacle("there is no TPU", "rent one")

    @classmethod
    def count(cls, facts: MachineFacts) -> int:
        return 0 if cls.why_not(facts) else 4

    @classmethod
    def get_device_stats(cls, device: object) -> dict[str, int]:
        return {"tpu_like_allocated_bytes": 7}

    @classmethod
    def torch_module(cls) -> SimpleNamespace:
        return SimpleNamespace(get_rng_state=cls.generator.clone, set_rng_state=cls.generator.copy_)


@pytest.fixture(autouse=True)
def table():
    cpu = ACCELERATORS.pop("cpu")
    ACCELERATORS.update(tpu_like=PretendedAccelerator, cpu=cpu)
    yield
    del ACCELERATORS["tpu_like"]


TPU = pc(machine="tpu")


def test_resolver_takes_a_new_accelerator():
    for asked in ("auto", "gpu", "tpu_like"):
        decision = resolve(DeviceRequest(accelerator=asked), TPU)
        assert (decision.name, decision.type) == ("tpu_like:0", "tpu_like")
    assert resolve(DeviceRequest(), under_torchrun(TPU, 4, local_rank=2)).name == "tpu_like:2"
    assert "3 more tpu_like devices would stay idle" in str(resolve(DeviceRequest(), TPU))
    assert "not tpu_like: there is no TPU; rent one." in str(resolve(DeviceRequest(), pc()))
    assert "it needs tpu_like" in refusal(resolve, DeviceRequest(use_cpu=True, ddp_backend="tpuccl"), TPU)


def test_all_that_describes_saves_and_measures_devices_knows_a_new_accelerator():
    assert trains_on(TPU) == "tpu_like"
    (finding,) = findings(TPU)
    assert finding.remedy.endswith("VISIBLE_TPUS=1 chooses the second")
    assert check_machine({**DEFAULTS, "num_processes": 4}, TPU).type == "tpu_like"
    says = "5 processes take one tpu_like device each, and this machine has 4."
    assert says in refusal(check_machine, {**DEFAULTS, "num_processes": 5}, TPU)
    args = SimpleNamespace(device=SimpleNamespace(type="tpu_like"))
    assert DeviceStatsMonitor()._figures(args) == {"tpu_like_allocated_bytes": 7}
    saved = rng_state()
    PretendedAccelerator.generator.zero_()
    set_rng(saved)
    assert PretendedAccelerator.generator.tolist() == [1, 2, 3]
