"""Copies in host memory."""

import collections

import pytest
import torch

from mps_trainer.checkpoints.writers import nbytes, on_host

pytestmark = pytest.mark.every_device


def test_a_copy_does_not_follow_the_original(device):
    value = {
        "a": torch.arange(6.0, device=device).reshape(2, 3),
        "b": [torch.ones(2, dtype=torch.int64, device=device), (torch.zeros((), device=device), "text")],
        "c": torch.arange(6.0, device=device).reshape(2, 3).t(),
        "d": torch.empty(0, 4, device=device),
        3: torch.arange(3.0),
    }
    copy = on_host(value)
    expected = {
        "a": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
        "c": [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]],
        "d": [],
        3: [0.0, 1.0, 2.0],
    }
    for tensor in (value["a"], value["b"][0], value["b"][1][0], value["c"], value[3]):
        tensor.add_(100)
    assert {key: copy[key].tolist() for key in expected} == expected
    assert copy["b"][0].tolist() == [1, 1]
    assert (float(copy["b"][1][0]), copy["b"][1][1]) == (0.0, "text")
    assert copy["b"][0].dtype == torch.int64
    assert copy["a"].device.type == "cpu"
    assert copy["d"].shape == (0, 4)


def test_what_shares_memory_shares_it_in_the_copy(device):
    weight = torch.arange(12.0, device=device).reshape(3, 4)
    value = {"one": weight, "tied": weight.detach(), "row": weight[1], "same": weight}
    assert nbytes(value) == 48
    copy = on_host(value)
    copy["one"][1] = -1
    assert copy["tied"][1].tolist() == [-1] * 4
    assert copy["row"].tolist() == [-1] * 4
    assert weight[1].tolist() == [4.0, 5.0, 6.0, 7.0]
    storage = torch.arange(10.0, device=device)
    first, second = on_host([storage[2:4], storage[4:8].reshape(2, 2).t()])
    assert (first.tolist(), second.tolist()) == ([2.0, 3.0], [[4.0, 6.0], [5.0, 7.0]])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert (second.storage_offset(), second.stride()) == (4, (1, 2))


def test_a_dictionary_whose_class_takes_something_else_is_copied(device):
    copy = on_host({"momenta": collections.defaultdict(list, a=[torch.ones(2, device=device)])})
    assert copy["momenta"]["a"][0].tolist() == [1, 1]
