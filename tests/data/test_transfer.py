"""A batch moves to the device whole."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from transformers import BatchEncoding

from mps_trainer.data.transfer import to_device

META = torch.device("meta")  # tensors without memory: a device that every torch has
Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "container",
    [
        lambda tensor: {"a": tensor, "b": {"c": tensor}},
        lambda tensor: [tensor, (tensor,)],
        lambda tensor: Pair(tensor, [tensor]),
        lambda tensor: OrderedDict(a=tensor),
        lambda tensor: BatchEncoding({"a": tensor}),
        lambda tensor: tensor,
    ],
)
def test_every_tensor_moves_and_containers_keep_their_type(container):
    batch = container(torch.ones(2))
    moved = to_device(batch, META)
    assert type(moved) is type(batch)
    assert str(moved).count("meta") == str(batch).count("tensor")


def test_other_values_stay():
    assert to_device({"n": 3, "name": "x", "none": None}, META) == {"n": 3, "name": "x", "none": None}


def test_float64_becomes_float32_for_mps_alone(monkeypatch):
    asked = []

    class Spy(torch.Tensor):
        def to(self, device=None, dtype=None, non_blocking=False):
            asked.append((device.type, dtype))
            return self

    double = torch.ones(2, dtype=torch.float64).as_subclass(Spy)
    to_device(double, torch.device("mps"))
    to_device(double, torch.device("cpu"))
    assert asked == [("mps", torch.float32), ("cpu", torch.float64)]
