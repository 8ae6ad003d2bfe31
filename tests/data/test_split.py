"""A batch is cut between examples, or not at all."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

from mps_trainer.data.split import UnsplittableBatchError, examples_in, split
from tests.conftest import refusal

Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    ("size", "most", "parts"), [(8, 4, [4, 4]), (9, 5, [5, 4]), (9, 2, [2, 2, 2, 2, 1]), (5, 3, [3, 2]), (3, 8, [3])]
)
def test_parts_are_few_and_even_and_in_order(size, most, parts):
    whole = torch.arange(size * 2).view(size, 2)
    for batch, read in (
        ({"x": whole}, lambda part: part["x"]),
        ((torch.zeros(size), whole), lambda part: part[1]),
        (whole, lambda part: part),
    ):
        cut = [read(part) for part in split(batch, most)]
        assert [len(part) for part in cut] == parts
        assert torch.equal(torch.cat(cut), whole)
    assert examples_in({"x": torch.zeros(1, 5), "labels": torch.zeros(6)}) == 6
    assert examples_in({"x": torch.zeros(1, 5)}) == 1
    assert len(split({"x": torch.zeros(1, 5), "view": [torch.zeros(1)]}, 1)) == 1


def test_everything_with_an_entry_for_each_example_is_cut_and_the_rest_is_shared():
    batch = BatchEncoding(
        {
            "x": torch.arange(4),
            "deep": {"pair": Pair(torch.arange(4), [torch.arange(8).view(4, 2)])},
            "text": ["a", "b", "c", "d"],
            "masks": [torch.ones(2, 3), torch.ones(5, 3), torch.ones(1, 3), torch.ones(7, 3)],
            "boxes": [{"boxes": torch.ones(n, 4), "size": torch.ones(2)} for n in (4, 1, 3, 4)],
            "classes": [torch.ones(4), torch.ones(1), torch.ones(3), torch.ones(4)],
            "array": np.arange(4.0),
            "shared": torch.zeros(1, 7),
            "scale": torch.tensor(2.0),
            "words": ["one", "two"],
            "flag": True,
        }
    )
    first, second = split(batch, 2)
    assert type(first) is BatchEncoding
    assert second["x"].tolist() == [2, 3]
    assert type(second["deep"]["pair"]) is Pair
    assert second["deep"]["pair"].second[0].tolist() == [[4, 5], [6, 7]]
    assert first["text"] == ["a", "b"]
    assert [len(mask) for mask in second["masks"]] == [1, 7]
    assert [len(each["boxes"]) for each in first["boxes"]] == [len(each) for each in first["classes"]] == [4, 1]
    assert second["array"].tolist() == [2.0, 3.0]
    assert first["shared"].shape == (1, 7)
    assert (first["scale"].item(), first["words"], first["flag"]) == (2.0, ["one", "two"], True)


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.zeros(4, 2), "weights": torch.zeros(3)},  # patches of images, or weights of classes
        {"x": torch.zeros(4, 2), "deep": [torch.zeros(3)]},
        {"x": torch.zeros(4, 2), "views or masks": [torch.zeros(4)] * 4},
        {"x": torch.zeros(4, 2).to_sparse()},
        {"x": 3},
        "text",
    ],
)
def test_a_batch_whose_examples_cannot_be_told_apart_is_left_alone(batch):
    refusal(split, batch, 2, kind=UnsplittableBatchError)
