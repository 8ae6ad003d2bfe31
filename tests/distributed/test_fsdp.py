"""Tests which modules are sharded as units of their own, and the message for those that cannot be."""

import pytest
import torch
from torch import nn

from mps_trainer.distributed.fsdp import _require_one_format, find_blocks
from tests.conftest import Classifier, refusal
from tests.tiny import tiny


def names(model, **config):
    of = {module: name for name, module in model.named_modules()}
    return [of[block] for block in find_blocks(model, config)]


@pytest.mark.parametrize(
    ("kind", "blocks"),
    [
        ("BertForSequenceClassification", ["bert.encoder.layer.1", "bert.encoder.layer.0", "bert.embeddings"]),
        ("BertForMaskedLM", ["bert.encoder.layer.1", "bert.encoder.layer.0"]),  # its embeddings are tied to its head
        ("T5ForConditionalGeneration", ["decoder.block.0", "encoder.block.1", "encoder.block.0"]),
    ],
)
def test_blocks_are_the_modules_that_a_model_of_transformers_does_not_want_split(kind, blocks):
    assert names(tiny(kind)) == blocks


def test_blocks_may_be_named_and_another_model_has_none():
    assert names(Classifier()) == []
    assert names(Classifier(), transformer_layer_cls_to_wrap=["Linear"]) == ["head", "hidden"]


def test_a_class_that_is_not_there_is_refused_with_those_that_are():
    model = tiny("BertForMaskedLM")
    assert refusal(names, model, transformer_layer_cls_to_wrap=["BertLayer", "GPT2Block"]) == (
        "fsdp_config: transformer_layer_cls_to_wrap names GPT2Block, but BertForMaskedLM contains none. Did you "
        "mean BertLayer?"
    )


def test_blocks_by_size_have_what_is_in_no_smaller_one():
    attention = nn.MultiheadAttention(8, 2)  # uses its child's parameters without calling it
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), attention)
    assert names(model, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=30) == ["1.0"]
    assert names(model, auto_wrap_policy="NO_WRAP") == []


def test_parameters_of_two_formats_in_one_block_are_refused():
    model = Classifier()
    model.head.to(torch.bfloat16)
    assert "Classifier has trained parameters in bfloat16 and float32: " in refusal(_require_one_format, model)
    model.head.requires_grad_(False)
    _require_one_format(model)
