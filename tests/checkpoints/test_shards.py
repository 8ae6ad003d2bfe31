"""Parts of tensors on the disk, written and read by one process; tests/distributed/test_sharding.py has several."""

import os

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints import manifest, shards
from mps_trainer.checkpoints.loading import OPTIMIZER, SCHEDULER, load_state_dicts, load_weights
from mps_trainer.checkpoints.writers import Save, shard_writer
from tests.conftest import assert_same_weights, refusal, weights

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
    real = dcp.HuggingFaceStorageReader.read_metadata

    def without_a_chunk(reader):
        metadata = real(reader)
        metadata.state_dict_metadata["weight"].chunks.clear()
        return metadata

    monkeypatch.setattr(dcp.HuggingFaceStorageReader, "read_metadata", without_a_chunk)
    assert "a part of weight is missing" in refusal(shards.listed, str(written), shards.WEIGHTS)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(3, 3)
        self.end = nn.Linear(3, 3)
        self.end.weight = self.begin.weight


def half() -> nn.Module:
    return nn.ModuleDict({"begin": nn.Linear(3, 3)})


@pytest.fixture
def write(make_trainer):
    """`write(folder, model, stateful)` writes the shards of a model and an optimizer, and what is beside them."""

    def write(folder, model, stateful):
        trainer = make_trainer({"model": model})
        trainer._mt_processes.group = None  # None means all processes
        save = Save(trainer.state, trainer.model, stateful, trainer.args, None, trainer._mt_processes)
        writer = shard_writer(save, {})
        writer.write_shards(str(folder))
        writer.write_files(str(folder))
        return str(folder)

    return write


class Counting(torch.optim.SGD):
    """A kind of the user's own: keeps values that are no tensor, and a state beside those of the parameters."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"count": 3, "mean": parameter.detach().clone()}
        self.state["all"] = {"mean": torch.tensor(5.0)}


def test_an_optimizer_may_keep_plain_values_and_a_state_of_no_parameter(tmp_path, write):
    model = half()
    optimizer, again = (Counting(model.parameters(), lr=0.1) for _ in range(2))
    optimizer.step()
    write(tmp_path, model, {OPTIMIZER: optimizer, SCHEDULER: torch.optim.lr_scheduler.StepLR(optimizer, 1)})
    (tmp_path / manifest.STATE).write_text('{"global_step": 1}')
    manifest.write(str(tmp_path), 1, 1)
    load_state_dicts({OPTIMIZER: again}, str(tmp_path))
    found = again.state_dict()["state"]
    assert [found[index]["count"] for index in (0, 1)] == [3, 3]
    assert torch.equal(found[0]["mean"], model.begin.weight)
    assert found["all"]["mean"] == 5
    torch.save([1], tmp_path / shards.REST)
    assert f"{tmp_path / shards.REST} is damaged" in refusal(load_state_dicts, {OPTIMIZER: again}, str(tmp_path))


def test_a_new_run_with_less_or_more_than_was_written_is_refused(write, tmp_path):
    said = refusal(load_weights, half(), write(tmp_path / "tied", Tied(), {}))
    assert "another model: 0 parameters are missing and 1 is unexpected, for example end.bias." in said
    said = refusal(load_weights, Tied(), write(tmp_path / "half", half(), {}))
    assert "1 parameter is missing and 0 are unexpected" in said


def test_a_new_run_with_another_shape_is_refused_before_anything_is_loaded(write, tmp_path):
    folder, model = write(tmp_path / "tied", Tied(), {}), Tied()
    model.end.bias = nn.Parameter(torch.ones(4))
    before = weights(model)
    assert "end.bias has the shape [3] there and [4] in the model." in refusal(load_weights, model, folder)
    assert_same_weights(weights(model), before)


def test_an_older_torch_is_refused_with_its_version(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.8.0")
    assert "needs torch 2.9 or newer, and this is 2.8.0" in refusal(shards.require_able)
    monkeypatch.setattr(torch, "__version__", "2.9.0")
    shards.require_able()
