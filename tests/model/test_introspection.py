"""Tests which model is the one under adapters."""

from __future__ import annotations

import pytest

from mps_trainer.model.introspection import base_model
from tests.tiny import tiny

peft = pytest.importorskip("peft")
LORA = peft.LoraConfig(target_modules=["q_proj"], r=2)


@pytest.fixture
def llama():
    return tiny("LlamaForCausalLM")


def test_base_model_is_the_model_under_the_adapters_of_peft(llama):
    assert base_model(peft.get_peft_model(llama, LORA)) is llama
    assert base_model(llama) is llama


def test_base_model_of_a_mixed_model_is_the_one_under_its_adapters(llama):
    assert base_model(peft.get_peft_model(llama, LORA, mixed=True)) is llama


def test_base_model_with_adapters_of_transformers_keeps_its_head(llama):
    llama.add_adapter(LORA)
    assert base_model(llama) is llama
