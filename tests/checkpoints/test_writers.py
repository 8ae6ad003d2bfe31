"""A checkpoint of which each process writes its part, written and read by one; tests/distributed has several."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints import shards
from mps_trainer.checkpoints.loading import OPTIMIZER, SCHEDULER, load_states, load_weights
from mps_trainer.checkpoints.writers import shard_writer, writer_for
from tests.conftest import assert_same_weights, refusal, weights

from .test_model_files import Processor


@pytest.fixture(autouse=True)
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(3, 3)
        self.end = nn.Linear(3, 3)
        self.end.weight = self.begin.weight

    def forward(self, x):
        return self.end(self.begin(x))


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(3, 3)


def run_of(model: nn.Module, kind=torch.optim.AdamW):
    optimizer = kind(model.parameters(), lr=0.1)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def sharded(model: nn.Module) -> nn.Module:
    return fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))


@pytest.fixture(params=["whole", "sharded"])
def make(request):
    return (lambda kind: kind()) if request.param == "whole" else (lambda kind: sharded(kind()))


@pytest.fixture
def trained(make):
    torch.manual_seed(0)
    model = make(Tied)
    optimizer, schedule = run_of(model)
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        schedule.step()
    return model, optimizer, schedule


@pytest.fixture
def write(make_trainer):
    """`write(folder, model, states, **attributes)` writes the shards of a Trainer that has these attributes."""

    def write(folder, model, states, **attributes):
        trainer = make_trainer({"model": model})
        trainer.optimizer, trainer.lr_scheduler = states.get(OPTIMIZER), states.get(SCHEDULER)
        vars(trainer).update(attributes)
        writer = shard_writer(trainer, states)
        writer.write_shards(str(folder))
        writer.write(str(folder))

    return write


@pytest.fixture
def folder(trained, write, tmp_path):
    """Returns what the writer writes of a model with its optimizer."""
    model, optimizer, schedule = trained
    written = tmp_path / "checkpoint-2"
    write(written, model, {OPTIMIZER: optimizer, SCHEDULER: schedule}, processing_class=Processor())
    return str(written)


def test_it_has_the_parts_and_beside_them_one_file_of_each_other_kind(folder):
    assert sorted(os.listdir(folder)) == [
        "optimizer_rest.pt", "rng_state.pth", "scheduler.pt", "shards", "training_args.bin", "vocabulary.txt",
    ]  # fmt: skip
    assert sorted(os.listdir(os.path.join(folder, "shards"))) == [shards.WEIGHTS, shards.OPTIMIZER]


def test_a_new_run_gets_from_it_what_was_written(folder, trained, make):
    model = make(Tied)
    optimizer, schedule = run_of(model)
    load_weights(model, folder)
    load_states({OPTIMIZER: optimizer, SCHEDULER: schedule}, folder)
    assert_same_weights(weights(model), weights(trained[0]))
    expected = trained[1].state_dict()
    found = optimizer.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for index, state in expected["state"].items():
        assert found["state"][index].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(found["state"][index][name], value, rtol=0, atol=0)
    assert schedule.state_dict() == trained[2].state_dict()


class Counting(torch.optim.SGD):
    """A kind of the user's own: keeps values that are no tensor, and a state beside those of the parameters."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"count": 3, "mean": parameter.detach().clone()}
        self.state["all"] = {"mean": torch.tensor(5.0)}


def test_an_optimizer_may_keep_plain_values_and_a_state_of_no_parameter(tmp_path, write):
    model = Half()
    optimizer, schedule = run_of(model, Counting)
    optimizer.step()
    write(tmp_path, model, {OPTIMIZER: optimizer, SCHEDULER: schedule})
    again, _ = run_of(model, Counting)
    load_states({OPTIMIZER: again}, str(tmp_path))
    found = again.state_dict()["state"]
    assert [found[index]["count"] for index in (0, 1)] == [3, 3]
    assert torch.equal(found[0]["mean"], model.begin.weight)
    assert found["all"]["mean"] == 5


def test_a_model_alone_is_written_without_the_files_of_training(trained, write, tmp_path):
    write(tmp_path / "written", trained[0], {})
    assert sorted(os.listdir(tmp_path / "written")) == ["shards", "training_args.bin"]
    assert os.listdir(tmp_path / "written" / "shards") == ["model"]


@pytest.mark.parametrize("kind", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
def test_the_writer_of_a_checkpoint_in_shards_has_shards_to_write_in_each_process(make_trainer, kind):
    trainer = make_trainer({"model": sharded(Half())})
    trainer.args.fsdp_config = {"state_dict_type": kind}
    writer = writer_for(trainer, {})
    assert not writer.in_background
    assert (writer.write_shards is not None) is (kind == "SHARDED_STATE_DICT")


def test_a_new_run_with_less_or_more_than_was_written_is_refused(folder, write, tmp_path):
    with pytest.raises(
        MisconfigurationException,
        match=f"The weights in {folder} belong to another model: 0 parameters are missing and "
        r"1 is unexpected, for example end\.bias\.",
    ):
        load_weights(Half(), folder)
    write(tmp_path, Half(), {})
    assert "1 parameter is missing and 0 are unexpected" in refusal(load_weights, Tied(), str(tmp_path))


def test_a_new_run_with_another_shape_is_refused_before_anything_is_loaded(folder):
    model = Tied()
    model.end.bias = nn.Parameter(torch.ones(4))
    before = weights(model)
    assert "end.bias has the shape [3] there and [4] in the model." in refusal(load_weights, model, folder)
    assert_same_weights(weights(model), before)


@pytest.mark.parametrize("place", ["folder", "link"])
def test_a_file_that_is_none_is_damaged_and_one_that_is_missing_starts_anew_with_a_warning(tmp_path, caplog, place):
    optimizer, _ = run_of(Half())
    load_states({OPTIMIZER: optimizer}, str(tmp_path))
    assert caplog.messages == [f"{tmp_path} has no optimizer.pt: this part of the run starts from the beginning."]
    path = tmp_path / OPTIMIZER
    if place == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    said = refusal(load_states, {OPTIMIZER: optimizer}, str(tmp_path))
    assert said == (
        f"{path} is damaged and cannot be read: it is a folder, or a link that leads nowhere. Resume from another "
        "checkpoint."
    )


@pytest.mark.parametrize(("error", "why"), [(KeyError("a"), "it has no 'a'"), (ValueError("one\ntwo"), "one")])
def test_a_part_that_does_not_take_its_state_is_named_with_the_reason(tmp_path, error, why):
    class Refuses:
        def load_state_dict(self, state):
            raise error

    torch.save({}, tmp_path / SCHEDULER)
    said = refusal(load_states, {SCHEDULER: Refuses()}, str(tmp_path))
    assert said == (
        f"{tmp_path / SCHEDULER} does not belong to this run: {why}. Resume with the model and optimizer that it was "
        "saved from, or train from the beginning."
    )
