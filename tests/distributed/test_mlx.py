"""Several processes exchange over MLX's ring, on the CPU and on the simulated mps device."""

import contextlib
import re
import socket
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from mps_trainer import MisconfigurationException
from tests.conftest import assert_same_weights, refusal
from tests.distributed import differing
from tests.distributed.conftest import assert_evaluated_alike, assert_resumed_exactly
from tests.distributed.scenarios import ALIKE
from tests.distributed.test_training import EVALUATIONS

pytest.importorskip("mlx.core", reason="MLX is not installed: the extra several-macs")
pytestmark = pytest.mark.extra

RUNS = [*ALIKE, "adapters_in_bfloat16"]
NAMES = [*RUNS, *EVALUATIONS, "a_run_resumed_in_an_epoch", "checkpoints", "a_signal_in_a_step", "objects", "tensors"]
NAMES += ["collectives", "replicas", "a_slow_process"]


@pytest.fixture
def made(made_by):
    """`made(2, "mps")(name)`; two processes have 8 examples in a batch, three have 12."""
    names = {(1, 8): [*RUNS, *EVALUATIONS], (2, 8): NAMES, (1, 12): RUNS, (3, 12): RUNS}
    return lambda size, device, together=8: made_by(
        size, *names[size, together], DDP_BACKEND="mlx", TRAINS_ON=device, TOGETHER=str(together)
    )


def assert_same_run(name, one, other, losses=2e-6, weights=2e-6):  # losses are near 4, whose last bit is 2.4e-7
    if name == "adapters_in_bfloat16" and weights:  # parts of a batch are rounded otherwise than the whole
        losses, weights = 1e-3, 1e-2
    assert one["steps"] == other["steps"]
    for key in ("losses", "norms", "epochs"):
        np.testing.assert_allclose(one[key], other[key], atol=losses, rtol=0)
    for key, tensor in other["weights"].items():
        torch.testing.assert_close(one["weights"][key].cpu(), tensor.cpu(), atol=weights, rtol=0)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_over_gloo_to_the_last_bit(made, made_by, name):
    for one, other in zip(made(2, "cpu")(name), made_by(2)(name), strict=True):
        assert_same_run(name, one, other, losses=0, weights=0)


@pytest.mark.parametrize(("size", "together"), [(2, 8), (3, 12)])
@pytest.mark.parametrize("name", RUNS)
def test_processes_on_mps_train_as_one(made, name, size, together):
    several, (alone,) = made(size, "mps", together)(name), made(1, "mps", together)(name)
    for one in several:
        assert_same_run(name, one, alone)
        assert_same_weights(one["weights"], several[0]["weights"])


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_and_predictions_are_those_of_one_process_and_over_gloo(made, made_by, name):
    assert_evaluated_alike(made(2, "mps")(name), *made(1, "mps")(name))
    assert_evaluated_alike(made(2, "cpu")(name), made_by(2)(name)[0])


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_a_resumed_run_is_equal_in_every_bit(made, device):
    for one in made(2, device)("a_run_resumed_in_an_epoch"):
        assert_resumed_exactly(one["whole"], one["again"])


@pytest.mark.parametrize("name", ["objects", "tensors"])
def test_processes_and_the_accelerator_exchange_as_over_gloo(made, made_by, name):
    for one, other in zip(made(2, "cpu")(name), made_by(2)(name), strict=True):
        assert repr(one) == repr(other)


def test_a_signal_to_one_process_ends_all_in_the_same_step(made):
    both = made(2, "mps")("a_signal_in_a_step")
    assert [one["ended"] for one in both] == [143, 143]
    assert both[0]["step"] == both[1]["step"]


@pytest.mark.parametrize(("device", "dtypes"), [("cpu", 7), ("mps", 6)])
def test_collectives_of_every_dtype(made, device, dtypes):
    assert [one["checked"] for one in made(2, device)("collectives")] == [dtypes, dtypes]


def test_gradients_on_mps_are_exchanged_without_a_wait_for_the_device(made):
    for one in made(2, "mps")("replicas"):
        assert one["counted"] == {"blocking_reads": 0, "device_to_host": 3}  # one copy for each bucket


def test_the_report_tells_who_waits_for_whom(made):
    (event,) = made(2, "cpu")("a_slow_process")[0]["events"]
    first, second = map(int, re.findall(r"process \d (\d+)%", event))
    assert first > 10
    assert second == 0


@pytest.mark.parametrize("case", differing.KILLED)
def test_the_others_name_a_process_that_was_killed(told_by, case):
    pids, told = told_by(case, ".pid"), told_by(case)
    assert len(told) == differing.KILLED[case] - 1
    for said in told:
        assert "did not come" in said
        assert "\n" not in said
        assert f"process 1 (pid {pids[1]} on {socket.gethostname()}): it does not answer" in said


def test_other_versions_on_another_machine_are_refused():
    from mps_trainer.distributed.mlx_ring import refuse_differences

    mac1, mac2 = ({"host": f"mac{i}", "versions": {"python": "3.12", "torch": f"2.{13 + i}.0"}} for i in (1, 2))
    assert refusal(refuse_differences, [mac1, mac1, mac2]) == (
        "The processes have different versions of torch: 2.14.0 on mac1 (process 0), 2.15.0 on mac2 (process 2). "
        "Install the same version everywhere."
    )
    refuse_differences([mac1, mac1])


@pytest.mark.parametrize(
    ("size", "failure", "says"),
    [
        (2, None, "one group, of all 3 processes, and a group of 2 was"),
        (3, RuntimeError("[ring] Socket closed"), r"after an earlier failure \(\[ring\] Socket closed\.\)"),
        (3, None, None),
    ],
)
def test_a_second_group_has_all_processes_and_its_own_timeout(monkeypatch, size, failure, says):
    from mps_trainer.distributed import mlx

    engine = SimpleNamespace(group=SimpleNamespace(size=lambda: 3), failure=failure, timeout=1800.0)
    monkeypatch.setattr(mlx, "_engine", engine)
    with contextlib.nullcontext() if says is None else pytest.raises(MisconfigurationException, match=says):
        mlx.create(dist.HashStore(), 0, size, timedelta(seconds=30))
        assert engine.timeout == 30
