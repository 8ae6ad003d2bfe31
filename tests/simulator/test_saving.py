"""Files saved from the device can be loaded on the device and elsewhere."""

from __future__ import annotations

import io

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ..conftest import assert_same_weights


def saved(what: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_tensor_comes_back_on_the_device(mps, dtype):
    tensor = torch.tensor([[1, 0], [2, 3]], device="mps").to(dtype)
    loaded = torch.load(saved({"tensor": tensor}))["tensor"]
    assert loaded.device == torch.device("mps:0")
    assert loaded.dtype == dtype
    assert torch.equal(loaded, tensor)


@pytest.mark.parametrize("where", ["cpu", torch.device("cpu"), {"mps": "cpu"}, lambda storage, _: storage])
def test_tensor_is_loaded_where_asked_for(mps, where):
    assert torch.load(saved(torch.ones(2, device="mps")), map_location=where).device.type == "cpu"


def test_tensor_of_the_cpu_is_loaded_onto_the_device(mps):
    assert torch.load(saved(torch.ones(2)), map_location="mps").tolist() == [1, 1]
    assert torch.load(saved(torch.ones(2)), map_location="mps").is_mps


def test_views_of_one_memory_stay_so(mps):
    whole = torch.zeros(2, 2, device="mps")
    whole, row = torch.load(saved([whole, whole[0]]))
    row.fill_(1)
    assert whole.tolist() == [[1, 1], [0, 0]]


def test_storages_are_made_and_copied(mps):
    storage = torch.arange(3, dtype=torch.uint8, device="mps").untyped_storage()
    assert storage.clone().device.type == "mps"
    assert storage.cpu().tolist() == storage.clone().tolist() == [0, 1, 2]
    assert storage.cpu().mps().device.type == "mps"
    assert torch.UntypedStorage(4, device="mps").nbytes() == 4
    assert torch.UntypedStorage(device="mps").nbytes() == 0
    assert torch.UntypedStorage(4).device.type == "cpu"
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]


def test_safetensors_are_saved_and_loaded(mps, tmp_path):
    path = tmp_path / "weights.safetensors"
    layer = nn.Linear(3, 2, device="mps")
    save_file(layer.state_dict(), path)
    on_device = load_file(path, device="mps")
    assert {tensor.device.type for tensor in on_device.values()} == {"mps"}
    assert_same_weights(dict(layer.state_dict()), on_device)
    assert_same_weights(dict(nn.Module.state_dict(layer.cpu())), load_file(path))


def test_storages_of_the_cpu_are_as_before_outside_the_block():
    assert torch.UntypedStorage(4).nbytes() == 4
    assert "__new__" not in vars(torch.UntypedStorage)
