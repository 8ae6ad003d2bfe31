"""Parts of tensors on the disk, written and read by one process; tests/distributed/test_sharding.py has several."""

import os

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints import shards
from tests.conftest import refusal

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

TENSORS = {"weight": torch.arange(12.0).reshape(3, 4), "steps": torch.tensor(7), "half": torch.ones(2).bfloat16()}


@pytest.fixture
def written(tmp_path):
    shards.write(str(tmp_path), shards.WEIGHTS, TENSORS)
    return tmp_path


def test_what_was_written_is_listed_and_read_again(written):
    (part,) = (written / "shards" / "model").iterdir()
    assert part.name.startswith("shard-00001-")  # without it, the parts of several processes would replace each other
    assert load_file(part).keys() == TENSORS.keys()  # it is no pickle
    assert shards.listed(str(written), shards.WEIGHTS) == {
        name: (tensor.shape, tensor.dtype) for name, tensor in TENSORS.items()
    }
    found = {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}
    shards.read_into(str(written), shards.WEIGHTS, found)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("damage", ["cut", "no header"])
def test_damaged_parts_are_refused(written, damage):
    (part,) = (written / "shards" / "model").iterdir()
    if damage == "cut":
        part.write_bytes(part.read_bytes()[:20])
    else:
        part.write_bytes(b"\xff" * 64)
    with pytest.raises(MisconfigurationException, match=os.path.join("shards", "model")):
        shards.listed(str(written), shards.WEIGHTS)


def test_a_tensor_of_another_shape_or_with_a_part_missing_is_refused(written, monkeypatch):
    assert "weight" in refusal(shards.read_into, str(written), shards.WEIGHTS, {"weight": torch.zeros(5, 5)})
    """A part of a tensor that no file has would stay as the memory happens to be."""
    real = dcp.HuggingFaceStorageReader.read_metadata

    def without_a_chunk(reader):
        metadata = real(reader)
        metadata.state_dict_metadata["weight"].chunks.clear()
        return metadata

    monkeypatch.setattr(dcp.HuggingFaceStorageReader, "read_metadata", without_a_chunk)
    assert "a part of weight is missing" in refusal(shards.listed, str(written), shards.WEIGHTS)


def test_a_disk_that_does_not_take_the_parts_is_an_error_of_the_disk(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp.HuggingFaceStorageWriter, "write_data", full)
    assert "No space left" in refusal(shards.write, str(tmp_path), shards.WEIGHTS, TENSORS, kind=OSError)


def test_an_older_torch_is_refused_with_its_version(monkeypatch):
    shards.require_able()
    monkeypatch.setattr(torch, "__version__", "2.8.0")
    assert "needs torch 2.9 or newer, and this is 2.8.0" in refusal(shards.require_able)
