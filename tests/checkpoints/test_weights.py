"""Tests the search for the files of a checkpoint that hold the weights."""

import json

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints.manifest import is_weights, weight_files


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.safetensors", True),
        ("model-00001-of-00002.safetensors", True),
        ("pytorch_model.bin", True),
        ("model.safetensors.index.json", True),
        ("my_model.safetensors", False),
        ("model.safetensors.tmp", False),
        ("adapter_model.safetensors", False),
    ],
)
def test_weights_are_known_by_their_names(name, expected):
    assert is_weights(name) is expected


def test_safetensors_go_before_pickles_and_one_file_before_an_index(tmp_path):
    assert weight_files(str(tmp_path)) == []
    index = json.dumps(
        {"weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors", "c": "model-1.safetensors"}}
    )
    names = ["pytorch_model.bin.index.json", "pytorch_model.bin", "model.safetensors.index.json", "model.safetensors"]
    shards = ["model-1.safetensors", "model-2.safetensors"]
    for name, expected in zip(names, [shards, ["pytorch_model.bin"], shards, ["model.safetensors"]], strict=True):
        (tmp_path / name).write_text(index)
        assert weight_files(str(tmp_path)) == expected


@pytest.mark.parametrize(
    "weight_map",
    [None, [], {}, {"a": 1}, {"a": "../model.safetensors"}, {"a": "/model.safetensors"}, {"a": "model.txt"}],
    ids=str,
)
def test_index_that_leads_elsewhere_is_refused(tmp_path, weight_map):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({} if weight_map is None else {"weight_map": weight_map}))
    with pytest.raises(MisconfigurationException, match=f"{index} is damaged and cannot be read: .*weight_map"):
        weight_files(str(tmp_path))
