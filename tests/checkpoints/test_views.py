"""Checkpoints of models whose parameters and buffers are views of larger tensors, or of each other."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mps_trainer.checkpoints import writers
from tests.conftest import assert_same_weights, weights


class Reader(nn.Module):
    """Classifies a number from 0 to 5."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)

    def forward(self, x, labels=None):
        hidden = self.embedding(x)
        for tensor in (*self.buffers(recurse=False), *self.parameters(recurse=False)):
            hidden = hidden + tensor.sum(0)
        logits = self.head(hidden)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trimmed(model):
    model.embedding.weight = nn.Parameter(torch.randn(100, 4)[:6])


def trimmed_in_place(model):
    model.embedding.weight.data = torch.randn(100, 4)[1:7]


def frozen_vectors(model):
    model.embedding = nn.Embedding.from_pretrained(torch.randn(7, 4)[1:], freeze=True)


def columns(model):
    model.embedding.weight = nn.Parameter(torch.randn(6, 8)[:, :4])


def every_second_row(model):
    model.embedding.weight = nn.Parameter(torch.randn(12, 4)[::2])


def chunks(model):
    first, second = torch.randn(12, 4).chunk(2)
    model.embedding.weight, model.head.weight = nn.Parameter(first), nn.Parameter(second)


def row_as_buffer(model):
    model.register_buffer("position", torch.randn(8, 4)[2:3])


def tied_slice(model):
    model.embedding.weight = model.head.weight = nn.Parameter(torch.randn(9, 4)[:6])


def overlapping(model):
    rows = torch.randn(8, 4)
    model.embedding.weight.data, model.head.weight.data = rows[:6], rows[2:]


def part_of_another(model):
    model.register_buffer("part", model.embedding.weight.data[2:4])


def transposed(model):
    model.embedding.weight.data = torch.randn(4, 6).t()
    model.head.weight.data = model.embedding.weight.data


def transposed_of_another(model):
    model.head = nn.Linear(6, 6, bias=False)
    model.embedding = nn.Embedding(6, 6)
    model.head.weight.data = model.embedding.weight.data.t()


KINDS = [
    *(trimmed, trimmed_in_place, frozen_vectors, columns, every_second_row, chunks, row_as_buffer),
    *(tied_slice, overlapping, part_of_another, transposed, transposed_of_another),
]
NUMBERS = [{"x": i % 6, "labels": (i + 1) % 6} for i in range(24)]


@pytest.mark.every_device
@pytest.mark.parametrize("save_async", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_views_resumes_as_if_uninterrupted(assert_resumes, kind, save_async):
    def parts():
        model = Reader()
        kind(model)
        return {"model": model, "train_dataset": NUMBERS}

    settings = {"max_steps": 4, "learning_rate": 0.05, "save_strategy": "steps", "save_steps": 2}
    assert_resumes(2, parts, save_async=save_async, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_each_tensor_is_saved_once_without_the_rest_of_its_storage(make_args, tmp_path, kind):
    model = Reader()
    kind(model)
    writers.write_model_files(model, None, make_args(), str(tmp_path))
    saved, own = load_file(tmp_path / "model.safetensors"), weights(model)
    if kind is tied_slice or kind is transposed:
        del own["head.weight"]
    assert_same_weights(saved, own)
    assert (tmp_path / "model.safetensors").stat().st_size < 600
