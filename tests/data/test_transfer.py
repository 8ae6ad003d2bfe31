"""A batch moves to the device whole."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from transformers import BatchEncoding

from mps_trainer.data.transfer import BatchTransfer

META = torch.device("meta")  # tensors without memory: a device that every torch has
Pair = namedtuple("Pair", "first second")


class Graph:
    def __init__(self, edges: torch.Tensor) -> None:
        self.edges = edges

    def to(self, device: torch.device) -> "Graph":
        return Graph(self.edges.to(device))

    def __str__(self) -> str:
        return str(self.edges)

    __repr__ = __str__


@pytest.mark.parametrize(
    "container",
    [
        lambda tensor: {"a": tensor, "b": {"c": tensor}},
        lambda tensor: [tensor, (tensor,)],
        lambda tensor: Pair(tensor, [tensor]),
        lambda tensor: OrderedDict(a=tensor),
        lambda tensor: BatchEncoding({"a": tensor}),
        lambda tensor: {"graph": Graph(tensor)},
        lambda tensor: tensor,
    ],
)
def test_every_tensor_moves_and_containers_keep_their_type(container):
    batch = container(torch.ones(2))
    moved = BatchTransfer(META)(batch)
    assert type(moved) is type(batch)
    assert str(moved).count("meta") == str(batch).count("tensor")


@pytest.fixture
def move(mps):
    return BatchTransfer(torch.device("mps"))


def test_a_batch_is_one_copy_and_arrives_whole(mps, move):
    there = torch.ones(2, device="mps")
    given = {
        "input_ids": torch.arange(12).reshape(3, 4),
        "flags": torch.tensor([True, False, True]),
        "half": torch.arange(5, dtype=torch.float16),
        "byte": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "empty": torch.empty(0, 3),
        "nested": {"list": [torch.tensor(2.5), "word"]},
        "there": there,
        "number": 3,
        "none": None,
    }
    before = mps.counters()["host_to_device"]
    moved = move(given)
    assert mps.counters()["host_to_device"] == before + 1
    for name in ("input_ids", "flags", "half", "byte", "empty"):
        assert (moved[name].device.type, moved[name].dtype) == ("mps", given[name].dtype)
        assert torch.equal(moved[name].cpu(), given[name])
    assert moved["there"] is there
    assert moved["nested"]["list"][0].item() == 2.5
    assert (moved["nested"]["list"][1], moved["number"], moved["none"]) == ("word", 3, None)
    across = torch.arange(6.0).reshape(2, 3).T  # it is not in one piece, and moves by itself
    moved = move({**given, "across": across})["across"]
    assert (moved.stride(), moved.cpu().tolist()) == ((1, 3), across.tolist())


def test_float64_arrives_as_float32_on_mps_alone(move):
    assert BatchTransfer(torch.device("cpu"))(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    moved = move({"a": torch.tensor([0.5], dtype=torch.float64), "b": torch.ones(1)})
    assert moved["a"].dtype == torch.float32
    assert moved["a"].item() == 0.5


def test_a_change_of_one_part_in_place_is_no_change_of_another(move):
    """The parts share a buffer, so autograd could take the change of one for a change of the other, and refuse."""
    moved = move({"x": torch.ones(2), "labels": torch.zeros(2)})
    weight = torch.ones(2, device="mps", requires_grad=True)
    loss = (weight * moved["x"]).sum()
    moved["labels"].fill_(-100)
    loss.backward()
    assert weight.grad.cpu().tolist() == [1.0, 1.0]


def test_large_batches_do_not_wait_for_the_device(mps, move):
    for _ in range(5):
        move({"a": torch.ones(2**20, 2)})  # 8 MiB
    assert mps.counters()["blocking_reads"] == 0


@pytest.mark.parametrize(("version", "waits"), [("2.12.1", 1), ("2.13.0", 0)])
def test_a_torch_that_frees_the_memory_of_copies_in_flight_waits(mps, monkeypatch, version, waits):
    """Up to torch 2.12 a copy that does not wait reads memory that may be used for something else (pytorch 139550)."""
    monkeypatch.setattr(torch, "__version__", version)
    BatchTransfer(torch.device("mps"))({"a": torch.ones(2)})
    assert mps._extension.counters()["blocking_reads"] == waits
