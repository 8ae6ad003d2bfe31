"""Tests the search for the files of a checkpoint that hold the weights."""

from __future__ import annotations

import json

import pytest

from mps_trainer import MisconfigurationException
from mps_trainer.checkpoints.storage.weights import is_weights, weight_files


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


TABLE, NAMES = (
    "its weight_map is not a dictionary of file names",
    "its weight_map has values that are not names of weight files",
)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({}, "weight_map is missing"),
        ({"weight_map": []}, TABLE),
        ({"weight_map": {}}, TABLE),
        ({"weight_map": {"a": 1}}, NAMES),
        ({"weight_map": {"a": "../model.safetensors"}}, NAMES),
        ({"weight_map": {"a": "/model.safetensors"}}, NAMES),
        ({"weight_map": {"a": "model.safetensors", "b": "model.txt"}}, NAMES),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(tmp_path, content, why):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps(content))
    with pytest.raises(MisconfigurationException) as refused:
        weight_files(str(tmp_path))
    assert str(refused.value) == f"{index} is damaged and cannot be read: {why}. Resume from another checkpoint."
