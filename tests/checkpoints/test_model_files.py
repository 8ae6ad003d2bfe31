"""Weights that their owner converted: loaded with a warning, or refused where a part of them is missing."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification

from mps_trainer import MisconfigurationException
from tests.conftest import assert_same_weights, weights

WEIGHTS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def trained(make_trainer):
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    return trainer


@pytest.fixture
def folder(trained):
    return os.path.join(trained.args.output_dir, "checkpoint-2")


def shard(folder):
    tensors = load_file(os.path.join(folder, WEIGHTS))
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for part, of in parts.items():
        save_file({name: tensors[name] for name in of}, os.path.join(folder, part), metadata={"format": "pt"})
    with open(os.path.join(folder, INDEX), "w") as file:
        json.dump({"metadata": {}, "weight_map": {name: part for part, of in parts.items() for name in of}}, file)
    os.remove(os.path.join(folder, WEIGHTS))


def unpack(folder):
    torch.save(load_file(os.path.join(folder, WEIGHTS)), os.path.join(folder, PICKLED))
    os.remove(os.path.join(folder, WEIGHTS))


@pytest.mark.parametrize("convert", [shard, unpack])
@pytest.mark.parametrize("requested", ["name", True])
def test_converted_weights_are_loaded_with_a_warning(make_trainer, trained, folder, caplog, convert, requested):
    convert(folder)
    again = make_trainer(max_steps=2, save_strategy="no")
    again.train(resume_from_checkpoint=folder if requested == "name" else requested)
    assert_same_weights(weights(trained.model), weights(again.model))
    [told] = [each.getMessage() for each in caplog.records if "converted" in each.getMessage()]
    assert "model.safetensors" in told
    assert ("pytorch_model.bin" if convert is unpack else "model-00001-of-00002.safetensors and 1 more") in told


def test_weights_that_were_joined_again_are_loaded_with_a_warning(make_trainer, trained, folder, caplog):
    from mps_trainer.checkpoints import manifest

    tensors = load_file(os.path.join(folder, WEIGHTS))
    shard(folder)
    manifest.write(folder, 2, 1)
    for name in os.listdir(folder):
        if name.startswith("model"):
            os.remove(os.path.join(folder, name))
    save_file(tensors, os.path.join(folder, WEIGHTS))
    again = make_trainer(max_steps=2)
    again.train(resume_from_checkpoint=folder)
    assert_same_weights(weights(trained.model), weights(again.model))
    assert "model.safetensors took the place of model-00001-of-00002.safetensors and 1 more" in caplog.text


def test_a_model_that_transformers_converts_is_loaded_with_a_warning(make_trainer, tmp_path, caplog):
    def bert():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        return BertForSequenceClassification(BertConfig(vocab_size=20, **sizes))

    data = [{"input_ids": [1, 2, 3], "labels": 1}] * 8
    settings = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    first = make_trainer({"model": bert(), "train_dataset": data}, **settings)
    first.train()
    folder = os.path.join(first.args.output_dir, "checkpoint-1")
    BertForSequenceClassification.from_pretrained(folder).save_pretrained(folder, max_shard_size="2KB")
    os.remove(os.path.join(folder, WEIGHTS))
    again = make_trainer({"model": bert(), "train_dataset": data}, **settings)
    again.train(resume_from_checkpoint=folder)
    assert_same_weights(weights(first.model), weights(again.model))
    assert "were converted" in caplog.text


def test_nothing_is_told_of_weights_as_they_were_saved(make_trainer, folder, caplog):
    open(os.path.join(folder, PICKLED), "wb").close()  # beside them, of no matter
    make_trainer(max_steps=2).train(resume_from_checkpoint=folder)
    assert "converted" not in caplog.text


def remove_part(folder):
    shard(folder)
    os.remove(os.path.join(folder, "model-00002-of-00002.safetensors"))
    return "model-00002-of-00002.safetensors is missing"


def cut_part(folder):
    shard(folder)
    os.truncate(os.path.join(folder, "model-00002-of-00002.safetensors"), 60)
    return "model-00002-of-00002.safetensors is cut off"


def lose_a_name(folder):
    shard(folder)
    path = os.path.join(folder, INDEX)
    with open(path) as file:
        index = json.load(file)
    index["weight_map"] = {name: part for name, part in index["weight_map"].items() if "00001" in part}
    with open(path, "w") as file:
        json.dump(index, file)
    return "parameters are missing"


def run_code(folder):
    unpack(folder)
    with open(os.path.join(folder, PICKLED), "wb") as file:
        pickle.dump(os.system, file)
    return "could run code"


def hold_words(folder):
    unpack(folder)
    torch.save({"head.weight": "x"}, os.path.join(folder, PICKLED))
    return "something other than a model's weights"


def lose_all(folder):
    os.remove(os.path.join(folder, WEIGHTS))
    return "model.safetensors is missing"


@pytest.mark.parametrize("spoil", [remove_part, cut_part, lose_a_name, run_code, hold_words, lose_all])
def test_converted_weights_that_are_not_all_there_are_refused(make_trainer, folder, spoil):
    says = spoil(folder)
    with pytest.raises(MisconfigurationException, match=says):
        make_trainer(max_steps=4).train(resume_from_checkpoint=folder)
