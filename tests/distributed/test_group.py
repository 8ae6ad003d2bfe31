"""Two processes on one machine, over gloo on the loopback interface."""

import json
import re
import sys
from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed

from mps_trainer import MachineFacts, TrainingArguments, distributed, resolve
from mps_trainer.devices import DeviceRequest
from tests.conftest import refusal
from tests.devices.machines import MACHINES, under_torchrun
from tests.distributed import differing

PC = MachineFacts(torch_version="2.13.0", world_size=2, rank=0, local_rank=0, local_world_size=2)
MAC = under_torchrun(MACHINES["m3_macos_15"], 2)


def test_the_main_process_does_its_block_first_and_releases_the_others_even_when_it_fails(told_by):
    """In a step of Slurm; the other tests have torchrun's variables."""
    for rank, report in enumerate(told_by(differing.SLURM)):
        assert json.loads(report) == {
            "seen": [True, True, True],
            "backend": "gloo",
            "device": "cpu",
            "numbers": [2, rank, rank],
            "main": [rank == 0, rank == 0],
            "mode": "distributed",
        }
    assert rank == 1


@pytest.fixture
def joined(monkeypatch):
    """Records backend, meeting point and timeout of each process group; one process alone cannot join one."""
    calls, places = [], []

    def rendezvous(place, rank, size, timeout):
        places.append((place, rank, size))
        yield torch.distributed.HashStore(), rank, size

    def init_process_group(backend, store, rank, world_size, timeout):
        calls.append((backend, *places.pop(), timeout))

    monkeypatch.setattr(torch.distributed, "rendezvous", rendezvous)
    monkeypatch.setattr(torch.distributed, "init_process_group", init_process_group)
    return calls


def init(facts=PC, backend=None):
    decision = resolve(DeviceRequest(ddp_backend=backend), facts)
    distributed.init_process_group(decision, backend, timedelta(seconds=9))


@pytest.fixture
def built_with(monkeypatch):
    """Torch has these backends, whatever this build of it has."""
    return lambda *names: monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: name in names)


@pytest.fixture
def without_mlx(monkeypatch):
    """MLX cannot be imported, whether or not this environment has it."""
    for name in [each for each in sys.modules if each.startswith(("mlx.", "mps_trainer.distributed.mlx"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(distributed, "mlx", raising=False)
    monkeypatch.setitem(sys.modules, "mlx", None)


CUDA = replace(PC, cuda_built=True, cuda_count=2)
ALL = ("gloo", "mpi", "nccl", "xccl")


@pytest.mark.parametrize(
    ("facts", "backend", "built", "expected"),
    [
        (PC, None, ALL, "gloo"),
        (PC, "mpi", ALL, "mpi"),
        (CUDA, None, ALL, "nccl"),
        (CUDA, None, ["gloo"], "gloo"),  # Windows has CUDA without NCCL
        (replace(PC, xpu_built=True, xpu_count=2), None, ALL, "xccl"),
    ],
)
def test_the_backend_is_the_devices_first_that_torch_has_unless_it_is_named(
    joined, built_with, facts, backend, built, expected
):
    built_with(*built)
    init(facts, backend)
    assert joined == [(expected, "env://", 0, 2, timedelta(seconds=9))]


@pytest.mark.parametrize(
    ("backend", "built", "said"),
    [
        ("mpi", ["gloo"], "ddp_backend='mpi' cannot be used on cpu: .* this torch has gloo for it. Use one of them"),
        ("ccl", ["gloo", "mpi"], ".*this torch has gloo and mpi for it.*import the package that adds"),
        (None, ["nccl"], "Several processes cannot train on cpu with this torch.*gloo, mpi, ccl"),
    ],
)
def test_a_backend_that_torch_has_not_is_refused_before_a_group_exists(joined, built_with, backend, built, said):
    built_with(*built)
    assert re.match(said, refusal(init, backend=backend))
    assert joined == []


@pytest.mark.parametrize(("built", "expected"), [(ALL, "gloo"), (["mpi"], "mpi")])
def test_the_cpu_needs_no_mlx(joined, built_with, without_mlx, built, expected):
    built_with(*built)
    init()
    assert [backend for backend, *_ in joined] == [expected]


def test_without_mlx_a_torch_without_backends_names_them_all(joined, built_with, without_mlx):
    built_with()
    assert re.match(r"Several processes cannot train on cpu with this torch.*gloo, mpi, ccl, mlx", refusal(init))


@pytest.mark.parametrize(
    ("facts", "backend", "said"),
    [
        (replace(PC, mlx=True), "mlx", "ddp_backend='mlx' needs MLX, which cannot be loaded"),
        (replace(MAC, mlx=True), None, "Several processes on mps need MLX, which cannot be loaded"),
        (PC, "mlx", "The launcher started 2 processes, and ddp_backend='mlx' needs MLX, which is not installed"),
        (MAC, None, "The launcher started 2 processes, and on mps they .* MLX, which is not installed"),
    ],
)
def test_mlx_that_is_asked_for_and_cannot_be_imported_names_the_extra(joined, without_mlx, facts, backend, said):
    assert re.match(
        rf"{said}.* python -m pip install (-U )?'mps_trainer\[several-macs\]'", refusal(init, facts, backend)
    )
    assert joined == []


def test_a_torch_without_processes_says_so(joined, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    assert re.search(r"2 processes .* built without torch\.distributed", refusal(init))


def test_processes_that_do_not_find_each_other_are_told_in_a_line(monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert re.match(r"Process 0 of 2 .* MASTER_ADDR expected.*torchrun", refusal(init))


def test_the_process_group_comes_with_the_device_and_not_before(joined, monkeypatch):
    monkeypatch.setattr("mps_trainer.training_args.gather_facts", lambda **_: PC)
    args = TrainingArguments(ddp_timeout=60)
    assert (args.world_size, args.should_save, joined) == (2, True, [])
    assert (str(args.device), str(args.device)) == ("cpu", "cpu")
    assert joined == [("gloo", "env://", 0, 2, timedelta(minutes=1))]


def test_a_process_group_that_exists_is_used_as_it_is(joined, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    init()
    assert joined == []


def test_numbers_wait_as_long_for_the_others_as_gradients_do(joined, monkeypatch):
    """They have a group of their own where the backend does not take tensors in host memory."""
    made = []
    monkeypatch.setattr("mps_trainer.training_args.gather_facts", lambda **_: PC)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.distributed, "new_group", lambda **settings: made.append(settings))
    _ = distributed.Processes.of(TrainingArguments(ddp_timeout=60)).group
    assert made == [{"backend": "gloo", "timeout": timedelta(minutes=1)}]
