"""Tests which modules are sharded as units of their own, and the message for those that cannot be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from mps_trainer import MisconfigurationException
from mps_trainer.distributed.fsdp import _require_one_format, find_blocks
from tests.conftest import Classifier

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 32}


def names(model, **config):
    of = {module: name for name, module in model.named_modules()}
    return [of[block] for block in find_blocks(model, config)]


def test_blocks_are_the_modules_that_a_model_of_transformers_does_not_want_split():
    model = BertForSequenceClassification(BertConfig(**SIZES))
    assert names(model) == ["bert.encoder.layer.1", "bert.encoder.layer.0", "bert.embeddings"]


def test_what_is_tied_to_something_else_is_no_block():
    assert names(BertForMaskedLM(BertConfig(**SIZES))) == ["bert.encoder.layer.1", "bert.encoder.layer.0"]


def test_encoder_and_decoder_have_blocks():
    config = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    assert names(T5ForConditionalGeneration(config)) == ["decoder.block.0", "encoder.block.0"]


def test_blocks_may_be_named():
    assert names(Classifier(), transformer_layer_cls_to_wrap=["Linear"]) == ["head", "hidden"]


def test_a_class_that_is_not_there_is_refused_with_those_that_are():
    model = BertForMaskedLM(BertConfig(**SIZES))
    with pytest.raises(MisconfigurationException) as caught:
        names(model, transformer_layer_cls_to_wrap=["BertLayer", "GPT2Block"])
    assert str(caught.value) == (
        "fsdp_config: transformer_layer_cls_to_wrap names GPT2Block, but BertForMaskedLM contains none. Did you "
        "mean BertLayer?"
    )


def test_a_model_that_names_no_blocks_has_none():
    assert names(Classifier()) == []


def test_blocks_by_size_have_what_is_in_no_smaller_one():
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), nn.MultiheadAttention(8, 2)
    )
    assert names(model, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=30) == ["1.0", "2"]
    assert names(model, auto_wrap_policy="NO_WRAP") == []


def test_parameters_of_two_formats_in_one_block_are_refused():
    model = Classifier()
    model.head.to(torch.bfloat16)
    with pytest.raises(
        MisconfigurationException, match=r"Classifier has trained parameters in bfloat16 and float32: "
    ):
        _require_one_format(model)
    model.head.requires_grad_(False)
    _require_one_format(model)
