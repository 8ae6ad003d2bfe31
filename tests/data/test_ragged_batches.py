"""Batches of rows that differ in length, without padding: nested tensors and packed sequences."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from mps_trainer.data.split import UnsplittableBatchError, split
from mps_trainer.data.transfer import BatchTransfer
from mps_trainer.utils.nested import find_batch_size
from tests.conftest import logged, refusal

ROWS = [{"x": torch.full((1 + i % 3, 2), i / 9), "labels": i % 3} for i in range(12)]


class OfMeans(nn.Module):
    """A classifier of the mean of each row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 3)

    def forward(self, x, labels=None):
        if isinstance(x, rnn.PackedSequence):
            padded, lengths = rnn.pad_packed_sequence(x, batch_first=True)
            means = padded.sum(1) / lengths[:, None].to(padded.device)
        else:
            means = torch.stack([row.mean(0) for row in x.unbind()])
        logits = self.layer(means.float())
        labels = torch.stack([row[0] for row in labels.unbind()]) if labels.is_nested else labels
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def nested(rows, layout=torch.jagged):
    return torch.nested.nested_tensor(rows, layout=layout)


def packed(rows):
    return rnn.pack_sequence(rows, enforce_sorted=False)


def strided(rows):
    return nested(rows, torch.strided)


def collator(ragged, nested_labels=False):
    def collate(rows):
        labels = torch.tensor([row["labels"] for row in rows])
        labels = nested([label.repeat(2) for label in labels]) if nested_labels else labels
        return {"x": ragged([row["x"] for row in rows]), "labels": labels}

    return collate


def with_means(rows):
    x = torch.stack([row["x"].mean(0, keepdim=True) for row in rows])
    return {"x": x, "labels": torch.tensor([row["labels"] for row in rows])}


@pytest.fixture
def losses(make_trainer):
    """`losses(collate, **settings)` returns the losses of a training run and of an evaluation."""

    def run(collate, **settings):
        given = {"model": OfMeans(), "data_collator": collate, "train_dataset": ROWS, "eval_dataset": ROWS}
        sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 5}
        trainer = make_trainer(given, max_steps=3, **sizes, **settings)
        trainer.train()
        return [*logged(trainer, "loss"), trainer.evaluate()["eval_loss"]]

    return run


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"auto_find_batch_size": True}], ids=str)
@pytest.mark.parametrize("ragged", [nested, strided, packed], ids=lambda ragged: ragged.__name__)
def test_ragged_rows_train_and_evaluate_on_the_cpu(losses, ragged, settings):
    assert losses(collator(ragged), **settings) == pytest.approx(losses(with_means, **settings), abs=1e-5)


@pytest.mark.parametrize("ragged", [nested, packed], ids=lambda ragged: ragged.__name__)
def test_ragged_rows_train_and_evaluate_on_mps(mps, losses, ragged):
    assert len(losses(collator(ragged))) == 4


@pytest.mark.parametrize("ragged", [nested, packed], ids=lambda ragged: ragged.__name__)
def test_float64_of_ragged_rows_arrives_as_float32_on_mps(mps, ragged):
    moved = BatchTransfer(torch.device("mps"))({"x": ragged([torch.ones(2, 2).double(), torch.ones(1, 2).double()])})
    data = moved["x"].values() if ragged is nested else moved["x"].data
    assert (data.device.type, data.dtype) == ("mps", torch.float32)


def test_nested_labels_count_each_label(losses):
    assert len(losses(collator(nested, nested_labels=True), gradient_accumulation_steps=2)) == 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_that_torch_cannot_copy_to_mps_is_refused(mps):
    text = refusal(BatchTransfer(torch.device("mps")), {"x": strided([torch.ones(2), torch.ones(1)])}, kind=TypeError)
    assert "layout=torch.jagged" in text


class Rows(namedtuple("Rows", "values lengths")):
    """Leaves its lengths in host memory."""

    def to(self, device):
        return type(self)(self.values.to(device), self.lengths)


class Table(dict):
    def to(self, device):
        return type(self)({**self, "values": self["values"].to(device)})


@pytest.mark.parametrize(
    "own",
    [Rows(torch.ones(2), torch.ones(2)), Table(values=torch.ones(2), lengths=torch.ones(2))],
    ids=["tuple", "dict"],
)
def test_a_batch_with_its_own_method_to_is_moved_by_it(mps, own):
    moved = BatchTransfer(torch.device("mps"))({"rows": [own]})["rows"][0]
    values, lengths = moved if isinstance(own, Rows) else moved.values()
    assert (type(moved), values.device.type, lengths.device.type) == (type(own), "mps", "cpu")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_whole_batch_with_a_method_to_is_copied(device):
    batch = Table(values=torch.ones(2), labels=torch.ones(2))
    moved = BatchTransfer(torch.device(device))(batch)
    assert (type(moved), moved is batch, moved["labels"].device.type) == (Table, False, device)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ({"x": packed([torch.ones(3, 2), torch.ones(1, 2)])}, 2),
        ({"x": nested([torch.ones(3, 2), torch.ones(1, 2)])}, 2),
        ({"words": ["a"], "x": (torch.ones(()), torch.ones(3, 2))}, 3),
        ({"x": "a"}, None),
    ],
)
def test_the_size_of_a_batch_is_the_number_of_its_rows(batch, size):
    assert find_batch_size(batch) == size


@pytest.mark.parametrize("ragged", [nested, packed], ids=lambda ragged: ragged.__name__)
def test_ragged_rows_are_not_split(ragged):
    batch = collator(ragged)(ROWS[:4])
    assert refusal(split, batch, 2, kind=UnsplittableBatchError).startswith("it has a ")
